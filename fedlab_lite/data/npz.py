"""A user's own data: each file `<name>.npz` in `FEDLAB_DATA` is a data set of that name.

    x_train, x_test          one row per sample: `[n, features]`, or `[n, height, width]` with or without `channels`
    y_train, y_test          the label of each row, `[n]`: 0 ... k-1
    owner_train, owner_test  whose each row is, `[n]`, if known: numbers or names (partition 'natural')
    task                     'classification' (the default) or 'next_character': x and y are ids `[n, length]`, with
                             0 for padding, which stands last and at the same places of both; owners are required

`check` reports all problems of a file at once. Nothing is unpickled. A header is trusted only if the file has the
length that it states.
"""

import io
import math
import os
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlab_lite.data.formats import Arrays, unreadable
from fedlab_lite.data.text import PAD
from fedlab_lite.util import CorruptFileError, InputError, data_dir, sha256_of_arrays

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
OWNERS = ("owner_train", "owner_test")
TASKS = ("classification", "next_character")
_HEADER = 1 << 16  # the most bytes of a member that are read as its header


class Own(NamedTuple):
    """The content of a file."""

    arrays: Arrays  # grey images have their channel axis, texts are int32
    task: str
    num_classes: int
    digest: str  # SHA-256 of the arrays: of the content, not of the file

    def describe(self) -> str:
        """Describe the content in one line: shape, classes, rows, owners, fingerprint."""
        x = self.arrays["x_train"]
        rows = " + ".join(f"{len(self.arrays[key]):,}" for key in ("x_train", "x_test"))
        kind = "ids" if self.task == "next_character" else "classes"
        shape = "x".join(map(str, x.shape[1:]))
        owners = f", {len(np.unique(self.arrays['owner_train'])):,} owners" if "owner_train" in self.arrays else ""
        return f"{shape} {x.dtype}, {self.num_classes} {kind}, {rows} rows{owners}, sha256 {self.digest[:12]}"


def own_file(name: str) -> Path:
    """The path of a user's own data set of this name, whether or not it exists."""
    return data_dir() / f"{name}.npz"


def has_own(name: str) -> bool:
    """Whether anything exists at `own_file(name)`.

    A folder or a broken link counts: reading it is an error, and it is never ignored.
    """
    return os.path.lexists(own_file(name))


def own_files() -> list[Path]:
    """The paths of all own data sets, sorted."""
    return sorted(path for path in data_dir().glob("*.npz") if not path.name.startswith("."))


def stamp(path: Path) -> tuple[int, int] | None:
    """The time of change and the size of a file, which change when it does; None if there is no file."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def read_npz(path: Path, num_classes: int | None = None, length: int | None = None) -> Own:
    """Read a file; raise `InputError` that lists all its problems, or `CorruptFileError` if it is damaged.

    Args:
      num_classes: of a published data set, whose labels need not all occur; None: as many as there are labels.
      length: of its sequences; 0: it has no sequences; None: according to the file's task.
    """
    return _read(path, num_classes, length, stamp(path))


@lru_cache(maxsize=1)
def _read(path: Path, num_classes: int | None, length: int | None, _stamp: tuple | None) -> Own:
    own, wrong = check(path, num_classes, length)
    if own is None:
        one = f" {wrong[0]}" if len(wrong) == 1 else "".join(f"\n  - {each}" for each in wrong)
        raise InputError(f"{path}:{one}")
    return own


def check(path: Path, num_classes: int | None = None, length: int | None = None) -> tuple[Own | None, list[str]]:
    """Return the content of a file, or None, and a list of all its problems; arguments and errors as in `read_npz`."""
    return examine(*_load(path), num_classes, length)


def examine(
    arrays: Arrays, wrong: Sequence[str] = (), num_classes: int | None = None, length: int | None = None
) -> tuple[Own | None, list[str]]:
    """Check arrays as `check` does for a file; `wrong` lists the problems already known."""
    arrays, wrong = dict(arrays), list(wrong)
    task = "next_character" if length else "classification"
    if (given := arrays.pop("task", None)) is not None:
        if given.ndim or given.dtype.kind != "U" or str(given) not in TASKS:
            wrong.append(f"task is {given!r}; it is a text, {' or '.join(map(repr, TASKS))}")
        elif length is not None and str(given) != task:
            wrong.append(f"task is {str(given)!r}, but a data set of this name is for {task!r}")
        else:
            task = str(given)
    for part in ("train", "test"):
        if f"x_{part}" in arrays and f"y_{part}" in arrays:
            wrong += _rows(arrays, part, task, length, num_classes)
    wrong += _train_and_test(arrays, task)
    wrong += _owners(arrays, task)
    known = {key: array for key, array in arrays.items() if key in NPZ_KEYS}
    if task == "classification" and not num_classes:
        wrong += _labels(known)
    if wrong:
        return None, wrong
    num_classes = num_classes or 1 + max(int(known[key].max()) for key in known if _is_ids(key, task))
    for key in known:
        if task == "next_character":
            arrays[key] = arrays[key].astype(np.int32)
        elif key[0] == "x" and arrays[key].ndim == 3:  # grey images without a channel axis
            arrays[key] = arrays[key][..., None]
    return Own(arrays, task, num_classes, sha256_of_arrays(dict(sorted(arrays.items())))), []


def _load(path: Path) -> tuple[Arrays, list[str]]:
    """Read the arrays that can be read, by key, and list the problems of the others."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        what = "a link that leads nowhere" if os.path.islink(path) else error.strerror
        raise InputError(f"{path} cannot be read: {what}") from error
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'no ordinary file'}, not an .npz")
    arrays, wrong, total = {}, [], 0
    try:
        if not zipfile.is_zipfile(path):
            raise unreadable(path, "it is no .npz archive")
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                key = member.filename.removesuffix(".npy")
                if key not in (*NPZ_KEYS, *OWNERS, "task"):
                    renamed = key.startswith("client_") and f"; {key.replace('client', 'owner')} is its name here"
                    wrong.append(f"it holds {key!r}, which is no part of a data set{renamed or ''}")
                    continue
                dtype, shape, size = _header(archive, member)
                if dtype.hasobject:
                    wrong.append(f"{key} holds Python objects; save plain numbers")
                elif size != member.file_size:
                    wrong.append(f"{key} says {dtype} {shape}, {size:,} bytes, but has {member.file_size:,}")
                elif (total := total + size) > _memory():
                    wrong.append(f"{key} says {dtype} {shape}, more than this machine's memory")
                else:
                    with archive.open(member) as file:
                        arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
    except (CorruptFileError, InputError):
        raise
    except (OSError, EOFError, OverflowError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise unreadable(path, error) from error
    except (MemoryError, NotImplementedError, RuntimeError, SyntaxError, tokenize.TokenError, TypeError) as error:
        raise unreadable(path, f"{type(error).__name__} {error}".strip()) from error
    if missing := [key for key in NPZ_KEYS if key not in arrays and not any(key in each for each in wrong)]:
        wrong.append(f"it has no {', '.join(missing)} (it has {', '.join(arrays) or 'nothing'})")
    return arrays, wrong


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[np.dtype, tuple[int, ...], int]:
    """The type, the shape and the number of bytes of an array, header included, according to its header."""
    with archive.open(member) as file:
        head = io.BytesIO(file.read(_HEADER))
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version := np.lib.format.read_magic(head))
    if read is None:
        raise ValueError(f"{member.filename} has version {version} of the .npy format")
    shape, _, dtype = read(head)
    return dtype, shape, head.tell() + math.prod(shape) * dtype.itemsize


def _memory() -> int:
    """The size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 40


def _is_ids(key: str, task: str) -> bool:
    return key[0] == "y" or task == "next_character"


def _rows(arrays: Arrays, part: str, task: str, length: int | None, num_classes: int | None) -> list[str]:
    """List the problems of the rows of one part (train or test) by itself."""
    wrong = []
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if task == "next_character":
        if x.ndim != 2 or x.shape != y.shape or (length and x.shape[1:] != (length,)):
            form = f"[n, {length or 'length'}]"
            return [f"x_{part} {x.shape} and y_{part} {y.shape} must both be ids {form}, a row a sequence"]
    else:
        if x.ndim < 2 or math.prod(x.shape[1:]) == 0:
            wrong.append(f"x_{part} is {x.shape}; it needs a row a sample, [n, features] or [n, height, width, ...]")
        if y.ndim != 1:
            wrong.append(f"y_{part} is {y.shape}; it needs one label a row, [n]")
        elif x.ndim and len(x) != len(y):
            wrong.append(f"x_{part} has {len(x)} rows and y_{part} {len(y)}; they need equally many")
    for key, array in ((f"x_{part}", x), (f"y_{part}", y)):
        if array.size == 0 or array.ndim == 0:
            wrong.append(f"{key} has no rows")
            continue
        ids = _is_ids(key, task)
        if array.dtype.kind not in ("iu" if ids else "fiub"):
            wrong.append(f"{key} is {array.dtype}; make it {'whole numbers' if ids else 'uint8 pixels or floats'}")
        elif ids and array.min() < 0:
            wrong.append(f"{key} runs from {array.min()}; {'ids' if task == 'next_character' else 'labels'} begin at 0")
        elif ids and num_classes and array.max() >= num_classes:
            wrong.append(f"{key} runs to {array.max()}; here it must lie in 0 ... {num_classes - 1}: renumber it")
        elif array.dtype.kind == "f" and not (finite := np.isfinite(array.reshape(len(array), -1)).all(1)).all():
            bad = np.flatnonzero(~finite)
            wrong.append(f"{key} holds NaN or infinity in {len(bad)} rows, the first of them row {bad[0]}")
    if task == "next_character" and not wrong and (((x == PAD) != (y == PAD)).any() or (x[:, 0] == PAD).any()):
        wrong.append(f"padding (id 0) must stand at the same places of x_{part} and y_{part}, last")
    return wrong


def _train_and_test(arrays: Arrays, task: str) -> list[str]:
    """List a difference between training and test rows in shape or type; ids may differ in type."""
    train, test = arrays.get("x_train"), arrays.get("x_test")
    if train is None or test is None or not train.ndim or not test.ndim:
        return []
    if train.shape[1:] == test.shape[1:] and (train.dtype == test.dtype or task == "next_character"):
        return []
    forms = [f"{array.dtype} {array.shape[1:]}" for array in (train, test)]
    return [f"a row of x_train is {forms[0]}, one of x_test {forms[1]}; bring both to one form"]


def _owners(arrays: Arrays, task: str) -> list[str]:
    wrong = []
    given = [key for key in OWNERS if key in arrays]
    if len(given) == 1:
        wrong.append(f"it has only one of {' and '.join(OWNERS)}; give both or neither")
    if not given and task == "next_character":
        wrong.append(f"it has no {' and '.join(OWNERS)}; sequences are dealt by role, so give both")
    for key in given:
        owner, rows = arrays[key], arrays.get(f"x_{key.removeprefix('owner_')}", np.zeros(0)).shape[:1]
        if owner.dtype.kind not in "iuU":
            wrong.append(f"{key} is {owner.dtype}; number the owners, or give their names as text")
        if owner.shape != rows:
            wrong.append(f"{key} is {owner.shape}, for x of {rows[0] if rows else 0} rows; it needs one owner a row")
    if len(given) == 2 and not wrong and not len(np.intersect1d(arrays[OWNERS[0]], arrays[OWNERS[1]])):
        wrong.append("no owner has rows for training and for testing, so nobody could be a client")
    return wrong


def _labels(arrays: Arrays) -> list[str]:
    """List the problems of the labels of a user's own data, where each class needs rows to train on.

    Files under the name of a published data set are not checked for this, because their classes are known.
    """
    labels = [arrays.get(key, np.zeros(0)) for key in ("y_train", "y_test")]
    if any(y.ndim != 1 or y.dtype.kind not in "iu" or not y.size or y.min() < 0 for y in labels):
        return []  # already reported
    train, test = map(np.unique, labels)
    wrong = []
    if train[-1] != len(train) - 1:  # sorted, different and from 0 on
        gap = int(np.flatnonzero(train != np.arange(len(train)))[0])
        wrong.append(
            f"y_train has {len(train)} labels, {train[0]} ... {train[-1]}, and none is {gap}: each class needs rows to "
            f"train on; number them 0 ... {len(train) - 1}"
        )
    if len(extra := np.setdiff1d(test, train)):
        wrong.append(f"y_test has label {extra[0]}, which no training row has")
    if len(train) < 2:
        wrong.append("y_train has one label alone; there is nothing to tell apart")
    return wrong
