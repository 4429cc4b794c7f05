"""Import of tables, folders of pictures, arrays and LEAF's JSON as a data set: one file `<name>.npz`, see `npz`."""

import io
import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlab_lite.data import npz, ranges, which
from fedlab_lite.data.formats import PARTS, Arrays
from fedlab_lite.data.import_arrays import read_arrays
from fedlab_lite.data.import_leaf import LEAF, leaf_files, read_leaf
from fedlab_lite.data.import_pictures import read_pictures
from fedlab_lite.data.import_tables import TABLES, read_table, stem_of
from fedlab_lite.data.pool import Pool, held_out
from fedlab_lite.util import InputError, write_atomic
from fedlab_lite.util.fields import Share, checks_arguments

Range = tuple[float, float]


class Imported(NamedTuple):
    """What `import_data` wrote, and what it did."""

    path: Path
    pool: Pool
    said: list[str]  # each conversion, and warnings


@checks_arguments
def import_data(
    source: Path,
    output: Path | None = None,
    *,
    label: str = "label",
    owner: str | None = None,
    split: str | None = None,
    drop: tuple[str, ...] = (),
    test_fraction: Share = 0.2,
    size: tuple[int, int] | None = None,
    pixel_range: Range | None = None,
    standardise: bool = False,
    overwrite: bool = False,
) -> Imported:
    """Make the data set `output` from a table, a folder of pictures, or arrays, and say what was done.

    A table (`import_tables.TABLES`) has one row per sample. Its column `label` may hold any values, and `owner` says
    whose each row is. Columns of numbers are features; `drop` leaves out some. A folder has one folder of pictures per
    class, or parts such as `train` and `test` with such folders in them. Arrays are a .npz with the names of MedMNIST,
    Keras or torchvision. LEAF's JSON is a file, or a folder with such files in `train` and `test`. Rows that are there
    several times are in training or in test, not in both.

    Args:
      output: None: in `FEDLAB_DATA`, named like the source.
      split: a column of a table that says 'train' or 'test'. None: `test_fraction` of each owner's rows is for testing,
        or of each class where there are no owners; at least one row. See `pool.held_out`.
      size: height and width, to which pictures are resized.
      pixel_range: the numbers for black and white, which networks see as 0 and 1. None: by type, see `ranges`.
      standardise: whether networks see the columns with mean 0 and deviation 1, over the training rows.
      overwrite: whether to replace the file `output`.

    Raises: `InputError`, which lists all problems, and `OutputError`.

    Example:
      >>> import pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> rows = [f"{k},{k % 3},{'ny'[k % 2]}" for k in range(10)]
      >>> _ = (folder / "t.csv").write_text("\\n".join(["a,b,label", *rows]))
      >>> path, pool, said = import_data(folder / "t.csv", folder / "t.npz")
      >>> pool.label_words, pool.x_train.shape, pool.y_test.tolist(), said[0]
      (('n', 'y'), (8, 2), [1, 0], '2 features: a, b')
    """
    output = output or npz.own_file(stem_of(source.absolute()))
    _check_output(output, overwrite)
    if leaf := leaf_files(source):
        columns, said = read_leaf(leaf)
    elif source.is_dir():
        columns, said = read_pictures(source, size, pixel_range is not None)
    elif source.name.lower().endswith(TABLES):
        columns, said = read_table(source, label, owner, split, drop)
    elif source.suffix.lower() == ".npz":
        columns, said = read_arrays(source)
    else:
        forms = f"a folder of images nor a table ({', '.join(TABLES)}) nor a .npz nor LEAF's {LEAF}"
        raise InputError(f"{source} is neither {forms}")
    _number(columns, said)
    is_test = columns.pop("test", None)
    if is_test is None:
        is_test = _divided(columns, test_fraction, said)
    elif shared := len(_rows(columns["x"][is_test]) & _rows(columns["x"][~is_test])):
        said.append(f"warning: {shared:,} rows are in training and in test; remove them from one")
    if pixel_range is not None:
        columns[npz.RANGE] = np.array(pixel_range)
    if standardise:
        if columns["x"].ndim != 2 or pixel_range is not None:
            raise InputError("standardise is for the columns of a table, and excludes --range; leave one out")
        columns[npz.RANGE] = ranges.standard_range(columns["x"][~is_test])
        said.append("networks see each column with mean 0 and deviation 1, as in the training rows")
    arrays = {key: columns.pop(key) for key in (npz.WORDS, npz.FEATURES, npz.RANGE) if key in columns}
    parts = zip(PARTS, (~is_test, is_test), strict=True)
    arrays |= {f"{kind}_{part}": column[rows] for part, rows in parts for kind, column in columns.items()}
    pool = npz.pool_of(arrays, [], output)
    if (known := which.published(output.stem)) and pool.num_classes != known:
        raise InputError(
            f"{output.stem} is the name of a published data set with {known} classes, and this one has "
            f"{pool.num_classes}; choose another --output, such as my_{output.name}"
        )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomic(output, buffer.getvalue())
    said += [f"warning: {words}" for words in ranges.judged((pool.x_train, pool.x_test), pool.feature_names)]
    return Imported(output, pool, said)


def _check_output(output: Path, overwrite: bool) -> None:
    """Raise `InputError` where a file exists that may not be replaced, or for a name that no data set can have."""
    if output.suffix != ".npz":
        raise InputError(f"{output}: a data set is a file <name>.npz; choose an --output with this ending")
    if not re.fullmatch(r"[^\W_][\w-]{0,99}", output.stem):
        words = "a name of a data set is a letter or digit, then at most 99 letters, digits, _ and -"
        raise InputError(f"{output.name!r}: {words}; choose another --output NAME.npz")
    if output.stem in which.EMBEDDED:
        raise InputError(
            f"{output.stem} is the name of embedded data; choose another --output, such as my_{output.name}"
        )
    if (output.exists() or output.is_symlink()) and not (overwrite and output.is_file()):
        raise InputError(f"{output} exists already; choose another --output, or replace a file with --overwrite")


def _number(columns: Arrays, said: list[str]) -> None:
    """Replace the column 'label' by 'y', the labels numbered from 0, and store their words."""
    labels = columns.pop("label", None)
    if labels is None:
        labels = columns.pop("y")
        if labels.dtype.kind in "iu" and labels.size and labels.min() == 0 and npz.WORDS in columns:
            columns["y"] = labels
            return
    if broken := next((word for word in map(str, np.unique(labels)) if not _is_text(word)), None):
        raise InputError(f"the name {broken!r} is no text in UTF-8; rename the folder, or save the file as UTF-8")
    classes, first, y = np.unique(labels, return_index=True, return_inverse=True)
    columns["y"] = y.astype(np.int32)
    words = columns.pop("words")[first] if "words" in columns else classes.astype(str)
    alike: dict[str, list[str]] = {}
    for word in words.tolist():
        alike.setdefault(unicodedata.normalize("NFC", word).strip().casefold(), []).append(word)
    for pair in (each for each in alike.values() if len(each) > 1):
        if len({unicodedata.normalize("NFC", word) for word in pair}) < len(pair):
            raise InputError(f"two labels are both written {pair[0]}, in two forms of Unicode; merge or rename them")
        said.append(f"warning: the labels {' and '.join(map(repr, pair))} differ in case or spaces only; are they one?")
    columns[npz.WORDS] = words


def _is_text(word: str) -> bool:
    """Whether a word can be written as UTF-8; the name of a folder in another encoding cannot."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _keys(x: np.ndarray) -> np.ndarray:
    """One value of bytes per row, `[n]`; equal rows have equal values."""
    flat = np.ascontiguousarray(x.reshape(len(x), -1)) + 0  # -0.0 becomes 0.0
    return flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1])))[:, 0]


def _rows(x: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in _keys(x)}


def _divided(columns: Arrays, test_fraction: float, said: list[str]) -> np.ndarray:
    """Draw the test rows, `[n]` bool, so that equal rows are on the same side."""
    groups, number = columns.get("owner", columns["y"]), {}
    keys = [number.setdefault(row.tobytes(), len(number)) for row in _keys(columns["x"])]
    unit, first = np.unique(keys, return_index=True)
    if len(unit) == len(groups):
        return held_out(groups, test_fraction, seed=0)
    is_test = held_out(groups[first], test_fraction, seed=0)[keys]
    said.append(f"{len(groups) - len(unit):,} rows repeat others; equal rows are all in training, or all in test")
    if differ := len({*zip(keys, columns["y"].tolist(), strict=True)}) - len(unit):
        said.append(f"warning: {differ:,} rows have the label of no other row that equals them; look at such rows")
    for group in np.unique(groups):
        mine = is_test[groups == group]
        if mine.all() or not mine.any():
            who = f"owner {group}" if "owner" in columns else f"label {columns[npz.WORDS][group]}"
            where = "test" if mine.all() else "training"
            said.append(f"warning: all rows of {who} are in {where}, because it has few different rows")
    return is_test
