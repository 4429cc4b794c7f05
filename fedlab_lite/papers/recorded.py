"""Read the JSON of a result: the form that it must have, checked as a whole, so that pages need not ask again."""

from pathlib import Path
from typing import Any

from fedlab_lite.papers import presets, scope
from fedlab_lite.papers.outcome import OUTCOMES
from fedlab_lite.util import CorruptFileError, InputError, choose, files
from fedlab_lite.util.forms import ANY, NUMBER, check_form

_SAID = {"": {"outcome": str, "reason": str}}
_FORM: dict[str, Any] = {
    **dict.fromkeys(("paper", "item", "claim", "quote", "where", "preset", "scope", "outcome", "word", "reason"), str),
    **{"data_source": str, "notebook_hash": str | None, "readings": _SAID, "also": _SAID, "comparisons": {"": dict}},
    **{"metrics": {"": {"mean": NUMBER, "std": NUMBER, "n": int}}, "constant_answer": {"": NUMBER}},
    **{"shown": [str], "departures": [str], "rivals": [str], "seeds": [int], "parameters": {"": ANY}},
    **{"published": [{"name": str, "value": ANY, "where": str}], "distance": {"": {"here": list, "paper": list}}},
    **{"provenance": {"device": str, "seconds": NUMBER, "versions": dict, "package_version": str}},
}
_MAY: dict[str, Any] = {"runs": [str], "changed": {"": ANY}, "stale": bool}


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
        check_form("it", result, form)
        choose("preset", result["preset"], presets.PRESETS)
        choose("outcome", result["outcome"], OUTCOMES)
        choose("word", result["word"], scope.WORDS)
        choose("scope", result["scope"], scope.SCOPES)
        for name in result["shown"]:
            choose("metric to show", name, result["metrics"])
    except InputError as error:
        raise CorruptFileError(
            f"{file} is not a result that this version can read ({error}); restore it, or remove it and run the "
            "notebook again"
        ) from error
    return result
