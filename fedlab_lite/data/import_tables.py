"""Import of tables and folders of images as a data set: one file `<name>.npz`, see `npz`."""

import io
from pathlib import Path

import numpy as np

from fedlab_lite.data import npz
from fedlab_lite.data.formats import PARTS, Arrays
from fedlab_lite.data.pool import Pool, held_out
from fedlab_lite.util import InputError, choose, write_atomic
from fedlab_lite.util.fields import Share, checks_arguments

TABLES = (".csv", ".parquet")


@checks_arguments
def import_data(
    source: Path,
    output: Path,
    *,
    label: str = "label",
    owner: str | None = None,
    split: str | None = None,
    test_fraction: Share = 0.2,
    size: tuple[int, int] | None = None,
) -> Pool:
    """Make the data set `output` from a table or a folder of images, with the words for its labels; return it.

    A table (.csv, .parquet) has one row per sample. Its column `label` may hold any values. The column `owner`, if
    given, says whose each row is. All other columns are features: numbers, used unchanged. A folder has one folder of
    images per class, or `train` and `test` with such folders in them. Grey images stay grey, others become RGB, all
    uint8. They are resized to `size` (height, width) if it is given.

    Args:
      split: a column of a table that says 'train' or 'test'. None: `test_fraction` of each owner's rows is for testing,
        or of each class where there are no owners; at least one row. See `pool.held_out`.

    Raises: `InputError`, which lists all problems, and `OutputError`.

    Example:
      >>> import pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "t.csv").write_text("a,b,label\\n" + "0,1,no\\n" * 5 + "2,3,yes\\n" * 5, encoding="utf-8")
      >>> pool = import_data(folder / "t.csv", folder / "t.npz")
      >>> pool.label_words, pool.x_train.shape, pool.y_test.tolist()
      (('no', 'yes'), (8, 2), [0, 1])
    """
    if output.suffix != ".npz":
        raise InputError(f"{output}: a data set is a file <name>.npz; choose an --output with this ending")
    if output.exists() or output.is_symlink():
        raise InputError(f"{output} exists already; move it away, or choose another --output")
    if source.is_dir():
        columns = _images(source, size)
    elif source.suffix in TABLES:
        columns = _table(source, label, owner, split)
    else:
        raise InputError(f"{source} is neither a folder of images nor a table ({', '.join(TABLES)})")
    labels, y = np.unique(columns.pop("label"), return_inverse=True)
    columns["y"] = y.astype(np.int32)
    is_test = columns.pop("test", None)
    if is_test is None:
        is_test = held_out(columns.get("owner", y), test_fraction, seed=0)
    parts = zip(PARTS, (~is_test, is_test), strict=True)
    arrays = {f"{kind}_{part}": column[rows] for part, rows in parts for kind, column in columns.items()}
    arrays[npz.WORDS] = labels.astype(str)
    pool = npz.pool_of(arrays, output)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomic(output, buffer.getvalue())
    return pool


def _table(source: Path, label: str, owner: str | None, split: str | None) -> Arrays:
    import pandas as pd

    if source.suffix == ".parquet":
        import pyarrow  # noqa: F401  (pandas reads with it; the command line says how to install it)
    try:
        table = pd.read_csv(source) if source.suffix == ".csv" else pd.read_parquet(source)
    except (OSError, ValueError) as error:  # pandas' parsing errors are ValueErrors
        raise InputError(f"{source} cannot be read as a table: {error}") from error
    named = [name for name in (label, owner, split) if name is not None]
    for name in named:
        choose(f"column of {source}", name, [str(column) for column in table.columns])
        if table[name].isna().any():
            raise InputError(f"{source}: column {name!r} is empty in row {int(table[name].isna().argmax())}")
    features = table.drop(columns=named)
    if words := [str(name) for name in features if not pd.api.types.is_numeric_dtype(features[name])]:
        raise InputError(f"{source}: {', '.join(words)} have values that are not numbers; encode or remove them")
    x = features.to_numpy(np.float32, na_value=np.nan)
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise InputError(f"{source}: {features.columns[column]} is empty or not a finite number in row {row}")
    columns = {"x": x, "label": table[label].to_numpy()}
    if owner is not None:
        columns["owner"] = table[owner].astype(str).to_numpy(str)
    if split is not None:
        for each in table[split].astype(str).unique():
            choose(f"value of column {split!r}", each, PARTS)
        columns["test"] = (table[split] == "test").to_numpy()
    return columns


def _images(source: Path, size: tuple[int, int] | None) -> Arrays:
    from PIL import Image

    halves = [source / part for part in PARTS]
    split = all(half.is_dir() for half in halves)
    images, labels, test = [], [], []
    for half in halves if split else [source]:
        for file in sorted(half.glob("*/*")):
            if not file.is_file() or file.name.startswith(".") or file.parent.name.startswith("."):
                continue
            try:
                with Image.open(file) as image:
                    image = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
            except Exception as error:  # Pillow raises many kinds of error for what is no image
                raise InputError(f"{file} cannot be read as an image: {error}") from error
            images.append(image if size is None else image.resize(size[::-1]))
            labels.append(file.parent.name)
            test.append(half.name == "test")
    if not images:
        raise InputError(f"{source} has no images; put the images of each class into a folder with its name")
    if len(shapes := {image.size[::-1] for image in images}) > 1:
        few = ", ".join(f"{height}x{width}" for height, width in sorted(shapes)[:4])
        raise InputError(f"the images have {len(shapes)} sizes ({few}, ...); set one, for example --size 32")
    grey = all(image.mode == "L" for image in images)
    x = np.stack([np.asarray(image if grey else image.convert("RGB")) for image in images])
    columns = {"x": x[..., None] if grey else x, "label": np.array(labels)}
    return columns | ({"test": np.array(test)} if split else {})
