"""Import of tables and folders of images as a data set: one file `<name>.npz`, see `npz`."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlab_lite.data import npz
from fedlab_lite.data.formats import Arrays
from fedlab_lite.util import InputError, choose, write_atomic

TABLES = (".csv", ".parquet")
PARTS = ("train", "test")


class Imported(NamedTuple):
    """The file that was written, its content, and the words for the labels 0, 1, ... ."""

    path: Path
    own: npz.Own
    labels: list[str]


def import_data(
    source: Path,
    output: Path,
    *,
    label: str = "label",
    owner: str | None = None,
    split: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    size: tuple[int, int] | None = None,
) -> Imported:
    """Make the data set `output` from a table or a folder of images.

    A table (.csv, .parquet) has one row per sample. Its column `label` may hold any values. The column `owner`, if
    given, says whose each row is. All other columns are features: numbers, used unchanged. A folder has one folder of
    images per class, or `train` and `test` with such folders in them. Grey images stay grey, others become RGB, all
    uint8. They are resized to `size` (height, width) if it is given.

    Args:
      split: a column of a table that says 'train' or 'test'. None: `test_fraction` of the rows of each owner, or of
        each class where there are no owners, but at least one, is for testing, drawn with `seed`.

    Raises: `InputError`, which lists all problems, and `OutputError`.

    Example:
      >>> import pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "t.csv").write_text("a,b,label\\n" + "0,1,no\\n" * 5 + "2,3,yes\\n" * 5)
      >>> found = import_data(folder / "t.csv", folder / "t.npz")
      >>> found.labels, found.own.arrays["x_train"].shape, found.own.arrays["y_test"].tolist()
      (['no', 'yes'], (8, 2), [0, 1])
    """
    if output.suffix != ".npz":
        raise InputError(f"{output}: a data set is a file <name>.npz; give --output that ending")
    if output.exists() or output.is_symlink():
        raise InputError(f"{output} is there already; move it away, or choose another --output")
    if not 0 < test_fraction < 1:
        raise InputError(f"the test fraction is {test_fraction}; give a share of the rows above 0 and below 1")
    if seed < 0:
        raise InputError(f"seed is {seed}; give 0 or more")
    if size is not None and min(size) < 1:
        raise InputError(f"the size is {size}; height and width are at least 1")
    if source.is_dir():
        columns = _images(source, size)
    elif source.suffix in TABLES:
        columns = _table(source, label, owner, split)
    else:
        raise InputError(f"{source} is neither a folder of images nor a table ({', '.join(TABLES)})")
    labels, y = np.unique(columns["label"], return_inverse=True)
    is_test = columns.get("test")
    if is_test is None:
        is_test = _drawn(columns.get("owner", y), test_fraction, seed)
    arrays: Arrays = {}
    for part, rows in zip(PARTS, (~is_test, is_test), strict=True):
        arrays |= {f"x_{part}": columns["x"][rows], f"y_{part}": y[rows].astype(np.int32)}
        if "owner" in columns:
            arrays[f"owner_{part}"] = columns["owner"][rows]
    found, wrong = npz.examine(arrays)
    if found is None:
        raise InputError(f"{source} makes no data set:{''.join(f'{chr(10)}  - {each}' for each in wrong)}")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return Imported(write_atomic(output, buffer.getvalue()), found, [str(each) for each in labels])


def _drawn(groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Draw the test rows, `[n]` bool: a `fraction` of each group, at least one row, and never all of two or more."""
    test, rng = np.zeros(len(groups), bool), np.random.default_rng(seed)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        test[rng.choice(rows, count, replace=False)] = True
    return test


def _table(source: Path, label: str, owner: str | None, split: str | None) -> Arrays:
    import pandas as pd

    try:
        table = pd.read_csv(source) if source.suffix == ".csv" else pd.read_parquet(source)
    except ModuleNotFoundError:
        raise
    except ImportError as error:  # raised by pandas where pyarrow is missing
        raise InputError("Parquet needs pyarrow: pip install 'fedlab-lite[data]'") from error
    except (OSError, ValueError, UnicodeError) as error:  # pandas' parsing errors are ValueErrors
        raise InputError(f"{source} cannot be read as a table: {error}") from error
    named = {"label": label, "owner": owner, "split": split}
    for name in (each for each in named.values() if each is not None):
        choose(f"column of {source}", name, [str(column) for column in table.columns])
        if table[name].isna().any():
            raise InputError(f"{source}: column {name!r} is empty in row {int(table[name].isna().argmax())}")
    features = table.drop(columns=[name for name in named.values() if name is not None])
    if words := [str(name) for name in features if not pd.api.types.is_numeric_dtype(features[name])]:
        raise InputError(f"{source}: {', '.join(words)} hold no numbers; encode or leave out these columns")
    x = features.to_numpy(np.float32, na_value=np.nan)
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise InputError(f"{source}: {features.columns[column]} is empty or no finite number in row {row}")
    columns = {"x": x, "label": table[label].to_numpy()}
    if owner is not None:
        columns["owner"] = np.unique(table[owner].astype(str).to_numpy(str), return_inverse=True)[1].astype(np.int32)
    if split is not None:
        parts = table[split].astype(str).to_numpy(str)
        for each in np.unique(parts):
            choose(f"value of column {split!r}", str(each), PARTS)
        columns["test"] = parts == "test"
    return columns


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _images(source: Path, size: tuple[int, int] | None) -> Arrays:
    halves = [source / part for part in PARTS]
    split = all(half.is_dir() for half in halves)
    found = [  # image, its class, whether it is for testing
        (file, folder.name, half.name == "test" and split)
        for half in (halves if split else [source])
        for folder in _folders(half)
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.startswith(".")
    ]
    if not found:
        raise InputError(f"{source} has no images; put those of each class into a folder that is named like the class")
    images = _read([file for file, *_ in found], size)
    columns = {"x": images, "label": np.array([label for _, label, _ in found])}
    return columns | ({"test": np.array([test for *_, test in found])} if split else {})


def _read(files: Sequence[Path], size: tuple[int, int] | None) -> np.ndarray:
    """Read image files as uint8 `[n, height, width, channels]`."""
    from PIL import Image, UnidentifiedImageError

    def read(file: Path) -> np.ndarray:
        try:
            with Image.open(file) as image:
                image = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
                return np.asarray(image if size is None else image.resize(size[::-1]))
        except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise InputError(f"{file} is no image that can be read: {error}") from error

    images = [read(file) for file in files]
    if any(image.ndim == 3 for image in images):  # a grey one among coloured ones
        images = [image if image.ndim == 3 else np.stack([image] * 3, -1) for image in images]
    else:
        images = [image[..., None] for image in images]
    if len(shapes := {image.shape[:2] for image in images}) > 1:
        few = ", ".join(f"{height}x{width}" for height, width in sorted(shapes)[:4])
        raise InputError(f"the images are of {len(shapes)} sizes ({few}, ...); say --size, for example --size 32")
    return np.stack(images)
