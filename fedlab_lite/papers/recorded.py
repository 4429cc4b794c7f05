"""Read the JSON of a result: the form that it must have, checked as a whole, so that pages need not ask again."""

from pathlib import Path
from types import UnionType
from typing import Any

from fedlab_lite.papers import presets, scope
from fedlab_lite.papers.outcome import OUTCOMES
from fedlab_lite.util import CorruptFileError, InputError, choose, files

_NUMBER, _ANY = int | float | None, object
_SAID = {"": {"outcome": str, "reason": str}}
_FORM: dict[str, Any] = {  # a list of one form; a mapping of names ("") to a form, or of given keys
    **dict.fromkeys(("paper", "item", "claim", "quote", "where", "preset", "scope", "outcome", "word", "reason"), str),
    **{"data_source": str, "notebook_hash": str | None, "readings": _SAID, "also": _SAID, "comparisons": {"": dict}},
    **{"metrics": {"": {"mean": _NUMBER, "std": _NUMBER, "n": int}}, "constant_answer": {"": _NUMBER}},
    **{"shown": [str], "departures": [str], "seeds": [int], "parameters": {"": _ANY}},
    **{"published": [{"name": str, "value": _ANY, "where": str}], "distance": {"": {"here": list, "paper": list}}},
    **{"provenance": {"device": str, "seconds": _NUMBER, "versions": dict, "package_version": str}},
}
_MAY: dict[str, Any] = {"runs": [str], "changed": {"": _ANY}, "stale": bool}


def read_result(file: Path) -> dict[str, Any] | None:
    """The content of a result's JSON, or None if there is no file.

    Raises `CorruptFileError` for other content, which names what is wrong.
    """
    try:
        result = files.read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        form = _FORM | {name: each for name, each in _MAY.items() if isinstance(result, dict) and name in result}
        _check("it", result, form)
        choose("preset", result["preset"], presets.PRESETS)
        choose("outcome", result["outcome"], OUTCOMES)
        choose("word", result["word"], scope.WORDS)
        for name in result["shown"]:
            choose("metric to show", name, result["metrics"])
    except InputError as error:
        raise CorruptFileError(
            f"{file} is not a result that this version can read ({error}); restore it, or remove it and run the "
            "notebook again"
        ) from error
    return result


def _check(what: str, value: Any, form: Any) -> None:
    """Raise `InputError` where a value has another form."""
    if isinstance(form, type | UnionType):
        if not isinstance(value, form):
            raise InputError(f"{what} is {value!r:.40}")
    elif isinstance(form, list):
        _check(what, value, list)
        for each in value:
            _check(f"an entry of {what}", each, form[0])
    else:
        _check(what, value, dict)
        for name in value if "" in form else form:
            _check(f"{name!r:.40} of {what}", value.get(name), form.get(name, form.get("")))
