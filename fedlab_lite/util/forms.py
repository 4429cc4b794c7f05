"""The form of what a file says, checked as a whole before it is used: types, lists of one form, and mappings."""

from types import UnionType
from typing import Any

from fedlab_lite.util.errors import InputError

NUMBER, ANY = int | float | None, object


def check_form(what: str, value: Any, form: Any) -> None:
    """Raise `InputError` where a value has another form.

    Args:
      form: a type, a list with the form of its entries, or a mapping. A mapping has the keys that there must be, each
        with its form, or "" with the form of all entries.

    >>> check_form("it", {"names": ["a"], "sizes": {"x": 1}}, {"names": [str], "sizes": {"": int}})
    >>> check_form("it", {"names": "a"}, {"names": [str]})
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: 'names' of it is 'a'
    """
    if isinstance(form, type | UnionType):
        if not isinstance(value, form):
            raise InputError(f"{what} is {value!r:.40}")
    elif isinstance(form, list):
        check_form(what, value, list)
        for each in value:
            check_form(f"an entry of {what}", each, form[0])
    else:
        check_form(what, value, dict)
        for name in value if "" in form else form:
            if name not in value:
                raise InputError(f"{what} has no {name!r}")
            check_form(f"{name!r:.40} of {what}", value[name], form.get(name, form.get("")))
