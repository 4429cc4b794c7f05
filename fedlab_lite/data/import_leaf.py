"""Import of LEAF's JSON (Caldas et al. 2018), `{"users", "num_samples", "user_data": {user: {"x", "y"}}}`."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedlab_lite.data.formats import PARTS, Arrays
from fedlab_lite.util import InputError
from fedlab_lite.util.memory import check_memory

LEAF = ".json"


def leaf_files(source: Path) -> dict[str, list[Path]]:
    """The files by part: those of the folders `train` and `test`, or one file ('') that is divided; {}: no LEAF."""
    if source.is_dir():
        found = {part: sorted((source / part).glob(f"*{LEAF}")) for part in PARTS}
        return found if all(found.values()) else {}
    return {"": [source]} if source.suffix.lower() == LEAF else {}


def read_leaf(files: dict[str, list[Path]]) -> tuple[Arrays, list[str]]:
    """The columns `x`, `label`, `owner` and perhaps `test` of LEAF's files, and what was done to make them.

    Raises `InputError` for other content, and for texts, whose characters have no numbers.
    """
    pairs = [(part, file) for part, of_part in files.items() for file in of_part]
    check_memory("LEAF's JSON", 10 * sum(file.stat().st_size for _, file in pairs), "import fewer files")
    rows: list[Any] = []
    labels: list[Any] = []
    owner: list[str] = []
    test: list[bool] = []
    for part, file in pairs:
        for user, x, y in _users(file):
            rows += x
            labels += y
            owner += [user] * len(y)
            test += [part == "test"] * len(y)
    what = pairs[0][1]
    try:
        x, y = np.array(rows), np.array(labels)
    except ValueError as error:
        raise InputError(f"{what}: the rows x differ in length; all need one shape") from error
    if x.dtype.kind not in "iuf" or x.ndim < 2:
        words = "a row x must be a list of numbers; encode texts as numbers first (for Shakespeare: `fedlab data fetch"
        raise InputError(f"{what}: the first row is {rows[0]!r:.40}, but {words} shakespeare`)")
    if y.ndim != 1 or (y.dtype.kind == "f" and (y != np.rint(y)).any()) or y.dtype.kind not in "iufU":
        raise InputError(f"{what}: the first label y is {labels[0]!r:.40}; a label is a word or a whole number")
    columns = {"x": x.astype(np.float32), "owner": np.array(owner)}
    columns["label"] = y.astype(int) if y.dtype.kind == "f" else y
    if "test" in files:
        columns["test"] = np.array(test)
    return columns, [f"LEAF's JSON: {len(set(owner)):,} users own the rows (partition 'natural')"]


def _users(file: Path) -> list[tuple[str, list, list]]:
    """Each user of a file, with its rows and labels."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = [(str(user), list(each["x"]), list(each["y"])) for user, each in content["user_data"].items()]
        told = dict(zip(content["users"], content["num_samples"], strict=False))
        counts = [told[user] for user, *_ in found]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as LEAF's JSON: {error}") from error
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        form = '{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}'
        raise InputError(f"{file} is not LEAF's JSON, which has the form {form}") from error
    for (user, x, y), count in zip(found, counts, strict=True):
        if not len(x) == len(y) == count:
            both = f"{len(x)} rows x and {len(y)} labels y"
            raise InputError(f"{file}: user {user!r} has {both}, but num_samples says {count}")
    if not any(y for *_, y in found):
        raise InputError(f"{file} has no rows")
    return found
