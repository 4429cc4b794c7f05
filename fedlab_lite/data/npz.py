"""A user's own data: each file `<name>.npz` in `FEDLAB_DATA` is a data set of that name.

    x_train, x_test          one row per sample: `[n, features]`, or `[n, height, width]` with or without `channels`
    y_train, y_test          the label of each row, `[n]`: 0 ... k-1
    owner_train, owner_test  whose each row is, `[n]`, if known: numbers or names (partition 'natural')
    label_words              the word for each label, `[k]`, if known
    feature_names            the columns of a table, `[features]`, if known
    x_range                  two values, `[2]` or `[2, features]`: what networks see as 0 and as 1 (see `ranges`)

An error lists all problems of a file at once. Nothing is unpickled.
"""

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedlab_lite.data import ranges
from fedlab_lite.data.formats import PARTS, Arrays
from fedlab_lite.data.pool import Pool, wrong_classes, wrong_owners, wrong_rows, wrong_words
from fedlab_lite.util import CorruptFileError, InputError, MissingDataError, data_dir
from fedlab_lite.util.memory import check_memory

KEYS = ("x_train", "y_train", "x_test", "y_test")
OWNERS = ("owner_train", "owner_test")
WORDS, FEATURES, RANGE = "label_words", "feature_names", "x_range"
KNOWN_COPIES = {  # digest of a pool -> the source that it is named by
    "902491f3c3e3ab713c864b577b3691b4b303d9f3f2bf6fff0a37eb87494873b3": "cifar10 (jpeg copy)",
}


def own_file(name: str) -> Path:
    """The path of a user's own data set of this name, whether or not it exists."""
    return data_dir() / f"{name}.npz"


def has_own(name: str) -> bool:
    """Whether anything exists at `own_file(name)`.

    A folder or a broken link counts: reading it is an error, and it is never ignored.
    """
    return os.path.lexists(own_file(name))


def own_names() -> list[str]:
    """The names of all own data sets, sorted."""
    return sorted(path.stem for path in data_dir().glob("*.npz") if not path.name.startswith("."))


def stamp(path: Path) -> tuple[int, int] | None:
    """The time of change and the size of a file, which change when it does; None if there is no file."""
    about = path.stat() if path.is_file() else None
    return about and (about.st_mtime_ns, about.st_size)


def unreadable(path: object, error: Exception) -> CorruptFileError:
    """The error for a file that cannot be read."""
    return CorruptFileError(
        f"{path} cannot be read and may be truncated ({type(error).__name__}: {error}). Nothing was deleted; move it "
        "away, then download or create it again"
    )


def read(path: Path, num_classes: int | None = None) -> Pool:
    """Read a file; raise `InputError` that lists all its problems, or `CorruptFileError` if it is damaged.

    Args:
      num_classes: of the published data set of that name, whose labels need not all occur.
    """
    return _read(path, num_classes, stamp(path))


@lru_cache(maxsize=1)
def _read(path: Path, num_classes: int | None, _stamp: tuple | None) -> Pool:
    return pool_of(*arrays_in(path), path, num_classes)


def arrays_in(path: Path) -> tuple[Arrays, list[str]]:
    """The arrays of a .npz file by name, and a list of what is wrong with some of them.

    Raises: `MissingDataError`, `CorruptFileError`, and `InputError` for what is no file, or needs more memory than is
      free.
    """
    if not os.path.lexists(path):
        raise MissingDataError(f"{path} does not exist. `fedlab data import --help` shows how to make one")
    if not path.is_file():
        raise InputError(f"{path} is not a file, but a folder, a broken link or similar")
    arrays, wrong = {}, []
    try:
        with open(path, "rb") as file, np.load(file) as content:
            size = sum(each.file_size for each in content.zip.infolist())
            check_memory(path, 2 * size, "close other programs, or save fewer rows, or pixels as uint8")
            for key in content.files:
                if key in arrays:
                    wrong.append(f"it has {key} twice; save each array once")
                    continue
                try:
                    array = np.asarray(content[key])
                    arrays[key] = array.astype(array.dtype.newbyteorder("="), copy=False)
                except ValueError as error:
                    if "Object arrays" not in str(error):
                        raise
                    wrong.append(f"{key} holds Python objects; save plain numbers")
    except InputError:
        raise
    except Exception as error:  # NumPy, zipfile and zlib raise many kinds of error for a damaged file
        raise unreadable(path, error) from error
    return arrays, wrong


def pool_of(arrays: Arrays, wrong: Sequence[str], path: Path, num_classes: int | None = None) -> Pool:
    """Make a pool of the arrays of the file `path`; raise `InputError` that lists all problems and `wrong`."""
    others = [key for key in arrays if key not in {*KEYS, *OWNERS, WORDS, FEATURES, RANGE}]
    wrong = [*wrong, *(f"it has {key!r}, which is not part of a data set" for key in others)]
    if missing := [key for key in KEYS if key not in arrays and not any(key in each for each in wrong)]:
        mend = "; `fedlab data import` reads arrays of other names" if others else ""
        wrong.append(f"it has no {', '.join(missing)} (it has {', '.join(arrays) or 'nothing'}){mend}")
    if len({*OWNERS} & arrays.keys()) == 1:
        wrong.append(f"it has only one of {' and '.join(OWNERS)}; save both or neither")
    for part in PARTS:
        x, y, owners = (arrays.get(f"{kind}_{part}") for kind in ("x", "y", "owner"))
        if x is not None and y is not None:
            wrong += wrong_rows(x, y, num_classes, f"_{part}")
        if x is not None and owners is not None:
            wrong += wrong_owners(owners, len(np.atleast_1d(x)), f"owner_{part}")
    x, y, test_x, test_y = (arrays.get(key, np.zeros(0)) for key in KEYS)
    if not wrong:
        if (x.dtype, x.shape[1:]) != (test_x.dtype, test_x.shape[1:]):
            forms = [f"{each.dtype} {each.shape[1:]}" for each in (x, test_x)]
            wrong.append(f"a row of x_train is {forms[0]}, one of x_test {forms[1]}; convert one to the other")
        wrong += wrong_classes(y, "y_train", known=bool(num_classes)) + wrong_classes(test_y, "y_test", known=True)
        if not num_classes and len(extra := np.setdiff1d(test_y, y)):
            wrong.append(f"y_test has label {extra[0]}, which no training row has")
        if not num_classes and len(np.unique(y)) < 2:
            wrong.append("y_train has only one label; a classification needs at least two")
        if not wrong and RANGE in arrays:
            wrong += ranges.wrong_range(arrays[RANGE], (x, test_x))
    words, features = (arrays.get(key, np.zeros(0, str)) for key in (WORDS, FEATURES))
    for key, texts, one in ((WORDS, words, "label"), (FEATURES, features, "column")):
        if texts.dtype.kind != "U" or texts.ndim != 1:
            wrong.append(f"{key} is {texts.dtype} {texts.shape}; save one word per {one}, a list of text")
    if not wrong and len(words):
        wrong += wrong_words(words.tolist(), num_classes or int(y.max()) + 1, WORDS)
    if not wrong and len(features) and x.shape[1:] != features.shape:
        wrong.append(f"{FEATURES} has {len(features)} names, but a row has shape {x.shape[1:]}; save one per column")
    if wrong:
        raise InputError(f"{path} is not a valid data set:" + "".join(f"\n  - {each}" for each in wrong))
    x_range = None
    if RANGE in arrays and (x.dtype != np.uint8 or tuple(arrays[RANGE].tolist()) != ranges.PIXELS):
        (x, test_x), x_range = ranges.scaled((x, test_x), arrays[RANGE]), arrays[RANGE].tolist()
    elif x.dtype == np.uint16:
        x, test_x = x.astype(np.int32), test_x.astype(np.int32)
    if x.ndim == 3:  # grey images without a channel axis
        x, test_x = x[..., None], test_x[..., None]
    about = {"name": path.stem, "num_classes": num_classes or int(y.max()) + 1, WORDS: tuple(words.tolist())}
    about |= {"x_train": x, "x_test": test_x, FEATURES: tuple(features.tolist())}
    about[RANGE] = x_range and tuple(tuple(each) if isinstance(each, list) else each for each in x_range)
    pool = Pool(**arrays | about, source="")
    digest = pool.digest()
    return pool._replace(source=KNOWN_COPIES.get(digest, f"own file {path.name}, sha256 {digest[:12]}"))
