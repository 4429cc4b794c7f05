"""Checks of types and ranges: of a dataclass's fields, a function's parameters, and any single value.

A rule stands in a field's metadata (`ranged`, `one_of`) or in a parameter's annotation, as `Annotated[int, Range(1)]`.
None is always in range where the type allows it. A list is in range if all its numbers are. It must not be empty,
unless its range says so. NaN and infinity are never in range, nor is a whole number that JAX's int32 cannot hold.
"""

import ast
import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from fedlab_lite.util.errors import InputError, choose, did_you_mean

LARGEST = 2**31 - 1  # the largest whole number that JAX's int32 holds

UNREADABLE = (ValueError, SyntaxError, MemoryError, RecursionError)  # what `ast` raises for text that is no literal

_UNIONS = (types.UnionType, Union)
_PLAIN = {int, float, str, bool, tuple, list, types.NoneType}


class Range(NamedTuple):
    """The numbers from `low` to `high`; `above` excludes `low`, `below` excludes `high`; `empty` allows empty lists.

    >>> str(Range(1)), str(Range(0, above=True)), str(Range(0, 1)), str(Range(0, 1, above=True))
    ('at least 1', 'above 0', '0 to 1', 'above 0 and at most 1')
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False
    empty: bool = False

    def holds(self, value: float) -> bool:
        low, high = value > self.low if self.above else value >= self.low, value <= self.high
        return math.isfinite(value) and low and high and not (self.below and value == self.high)

    def __str__(self) -> str:
        if self.low == -math.inf:
            return "finite"
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        if self.high == math.inf:
            return low
        if not self.above and not self.below:
            return f"{self.low:g} to {self.high:g}" if self.high < LARGEST else f"{self.low:g} to 2^31 - 1"
        return f"{low} and {'below' if self.below else 'at most'} {self.high:g}"


FINITE = Range(-math.inf)
Rule = Range | tuple[str, ...] | None  # a range of numbers, or the allowed words; None: only the type is checked

Count = Annotated[int, Range(1)]  # types of a network's options
Counts = Annotated[tuple[int, ...], Range(1)]
Rate = Annotated[float, Range(0, 1, below=True)]
Share = Annotated[float, Range(0, 1, above=True, below=True)]
Probability = Annotated[float, Range(0, 1, above=True)]
Positive = Annotated[float, Range(0, above=True)]
Seed = Annotated[int, Range(0, LARGEST)]


class Allowed(NamedTuple):
    """What a value may be: its type and its rule."""

    hint: Any
    rule: Rule = None


def ranged(
    default: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: bool = False,
    below: bool = False,
    empty: bool = False,
    static: bool = False,
) -> Any:
    """A dataclass field with a default and a `Range`; a `static` field is a constant of a compiled round."""
    return field(default=default, metadata={"rule": Range(low, high, above, below, empty), "static": static})


def one_of(default: str, *words: str) -> Any:
    """A dataclass field with a default, whose value is the default or another one of `words`, shown in their order.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Walk:
    ...     pace: str = one_of("slow", "fast")
    >>> check_fields(Walk("fats"), "Walk")
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: pace of Walk must be one of slow, fast, got 'fats'; did you mean 'fast'?
    """
    return field(default=default, metadata={"rule": words if default in words else (default, *words)})


def like(record: Any, name: str) -> Any:
    """A dataclass field with the default and the rule of the field `name` of another dataclass."""
    other = record.__dataclass_fields__[name]
    return field(default=other.default, metadata=other.metadata)


def _allowed(owner: Any, what: str) -> dict[str, Allowed]:
    """What the annotations of a class or a function allow; a number without a rule must be finite."""
    try:
        hints, written = get_type_hints(owner), get_type_hints(owner, include_extras=True)
    except NameError as error:
        raise InputError(f"the types of {owner.__qualname__}'s {what} cannot be read: {error}") from error
    found = {}
    for name, hint in hints.items():
        kinds = [kind for kind in (written[name], *get_args(written[name])) if get_origin(kind) is Annotated]
        plain = FINITE if {int, float} & set(kinds_of(hint)) else None
        notes = [note for kind in kinds for note in kind.__metadata__ if isinstance(note, tuple)]
        found[name] = Allowed(hint, next(iter(notes), plain))
    return found


@functools.cache
def rules_of(record: type) -> dict[str, Allowed]:
    """What the fields of a dataclass may be, by name.

    Types written as text are resolved, such as those under `from __future__ import annotations`. Raises `InputError`
    for a type that its module does not define.
    """
    known = _allowed(record, "fields")
    return {
        each.name: Allowed(known[each.name].hint, each.metadata.get("rule", known[each.name].rule))
        for each in fields(record)
    }


@functools.cache
def parameters_of(function: Callable) -> dict[str, Allowed]:
    """What the parameters of a function may be, by name; one without a type may be anything. See `rules_of`.

    >>> def tree(height: Count, name="oak"): ...
    >>> parameters_of(tree)["height"].rule == Range(1), parameters_of(tree)["name"]
    (True, Allowed(hint=typing.Any, rule=None))
    """
    known = _allowed(function, "parameters")
    return {name: known.get(name, Allowed(Any)) for name in inspect.signature(function).parameters}


def hints_of(record: type) -> dict[str, Any]:
    """The types of a dataclass's fields, by name, as `rules_of` reads them."""
    return {name: allowed.hint for name, allowed in rules_of(record).items()}


def check_fields(record: Any, where: str = "", known: Callable[[Any], bool] = lambda value: True) -> None:
    """Raise `InputError` for a value that breaks its field's type or rule; `known` selects the values to check."""
    for name, allowed in rules_of(type(record)).items():
        if known(getattr(record, name)):
            check_value(f"{name} of {where}" if where else name, getattr(record, name), *allowed)


def checked(where: str, options: Mapping[str, Any], known: Mapping[str, Allowed]) -> dict[str, Any]:
    """Options in their normal form. Raises `InputError` for one that is not known, or breaks its type or rule.

    >>> checked("model net", {"width": 0}, {"width": Allowed(int, Range(1))})
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: width of model net must be of type int, at least 1, got 0
    """
    for name, value in options.items():
        choose(f"option of {where}", name, known)
        check_value(f"{name} of {where}", value, *known[name])
    return {name: normal(value, known[name].hint) for name, value in options.items()}


def checks_arguments(function: Callable) -> Callable:
    """A function that checks its plain arguments (numbers, words, lists of them) by their annotations when called.

    >>> @checks_arguments
    ... def tree(height: Count, name="oak"): ...
    >>> tree(0)
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: height must be of type int, at least 1, got 0
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked_function(*args: Any, **kwargs: Any) -> Any:
        known = parameters_of(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if set(kinds_of(known[name].hint)) <= _PLAIN:
                check_value(name, value, *known[name])
        return function(*args, **kwargs)

    return checked_function


def type_from(text: str) -> Any:
    """The type that an annotation of plain types says, such as `tuple[int, ...] | None`; it is read, never evaluated.

    Raises `ValueError` for anything else.

    >>> type_from("int | None") == int | None, type_from("tuple[float, ...]")
    (True, tuple[float, ...])
    """
    known = {kind.__name__: kind for kind in (int, float, str, bool, tuple, list, dict)}

    def read(node: ast.AST) -> Any:
        match node:
            case ast.Expression():
                return read(node.body)
            case ast.Name() if node.id in known:
                return known[node.id]
            case ast.Constant() if node.value in (None, ...):
                return node.value
            case ast.BinOp(op=ast.BitOr()):
                return read(node.left) | read(node.right)
            case ast.Subscript():
                inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                return read(node.value)[tuple(map(read, inside))]
        raise ValueError(f"{text!r} is made of other things than plain types")

    return read(ast.parse(text, mode="eval"))


def fits(value, hint) -> bool:
    """Whether a value is of an annotated type; an int passes as a float, a list as a tuple, a bool as no number.

    >>> fits(3, float), fits(True, int), fits([1, 2], tuple[int, ...]), fits("x", int | None)
    (True, False, True, False)
    """
    origin = get_origin(hint)
    if origin in _UNIONS:
        return any(fits(value, option) for option in get_args(hint))
    if hint in (list, tuple) or origin in (list, tuple):
        inner = get_args(hint)[0] if get_args(hint) else object
        return isinstance(value, list | tuple) and all(fits(item, inner) for item in value)
    if hint is None:
        return value is None
    if hint in (int, float) and isinstance(value, bool):
        return False
    kind = int | float if hint is float else origin or hint
    return hint is Any or not isinstance(kind, type | types.UnionType) or isinstance(value, kind)


def type_name(hint) -> str:
    if get_origin(hint) in _UNIONS:
        return " | ".join(map(type_name, get_args(hint)))
    if hint is types.NoneType:
        return "None"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def check_value(name: str, value: Any, hint: Any, rule: Rule = None) -> None:
    """Raise `InputError` unless a value has the type `hint` and meets `rule`; the message names both.

    >>> check_value("lr", 0.0, float | None, Range(0, above=True))
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: lr must be of type float | None, above 0, got 0.0
    """
    several = isinstance(value, list | tuple)
    if isinstance(rule, Range):
        each = f"each {rule}" if rule.empty else f"not empty, each {rule}"
        allowed = each if several or {list, tuple} & set(kinds_of(hint)) else str(rule)
    else:
        allowed = f"one of {', '.join(word or repr(word) for word in rule)}" if rule else ""
    if not fits(value, hint):
        raise _wrong(name, value, hint, allowed)
    if isinstance(rule, Range):
        numbers = value if several else [] if value is None else [value]
        if any(isinstance(number, int) and number > LARGEST for number in numbers):
            raise _wrong(name, value, hint, f"{allowed}, whole numbers at most 2^31 - 1")
        if (several and not value and not rule.empty) or not all(map(rule.holds, numbers)):
            raise _wrong(name, value, hint, allowed)
    elif rule and value is not None and value not in rule:
        raise InputError(f"{name} must be {allowed}, got {value!r}{did_you_mean(value, rule)}")


def _wrong(name: str, value: Any, hint: Any, allowed: str) -> InputError:
    allowed = allowed or ("True or False" if hint is bool else "")
    also = f", {allowed}" if allowed else ""
    kind = "" if fits(value, hint) else f" ({type(value).__name__})"
    return InputError(f"{name} must be of type {type_name(hint)}{also}, got {value!r:.200}{kind}")


def kinds_of(hint: Any) -> tuple:
    """The types that `hint` allows: one, or all members of a union, without the element types of lists."""
    return tuple(get_origin(kind) or kind for kind in (get_args(hint) if get_origin(hint) in _UNIONS else (hint,)))


def normal(value: Any, hint: Any) -> Any:
    """A value of type `hint` in its normal form: an int where a float belongs becomes a float, a list a tuple.

    >>> normal(1, float | None), normal([1, 2], tuple[float, ...]), normal(1, int)
    (1.0, (1.0, 2.0), 1)
    """
    if type(value) in (list, tuple):  # and not a NamedTuple, which an optimiser is
        return tuple(float(each) if float in get_args(hint)[:1] else each for each in value)
    wants_float = float in (hint, *get_args(hint)) and int not in get_args(hint)
    return float(value) if wants_float and isinstance(value, int) else value
