"""Import of a table, one row per sample: text in any usual form, or Parquet. Columns are told by name."""

import csv
import gzip
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedlab_lite.data.formats import PARTS, Arrays
from fedlab_lite.data.import_suspects import suspects
from fedlab_lite.util import InputError, choose
from fedlab_lite.util.memory import check_memory, free_memory

TEXTS, PACKED = (".csv", ".tsv"), ".gz"
TABLES = (*TEXTS, *(f"{suffix}{PACKED}" for suffix in TEXTS), ".parquet")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
EXACT = 2**24  # whole numbers beyond it are rounded in float32


def read_table(
    source: Path, label: str, owner: str | None, split: str | None, drop: tuple[str, ...] = ()
) -> tuple[Arrays, list[str]]:
    """The columns `x`, `label` and perhaps `owner`, `test`, `words` of a table, and what was done to make them.

    Columns of numbers are features, in their order. Labels and owners of a text file stay as they are written: 01 and 1
    are two. Where labels are numbers, a column of text that has another word for each of them gives their words.
    """
    import pandas  # noqa: F401  (the command line says how to install it, before anything else)

    if not source.is_file():
        what = "is not a file, but a pipe or similar; copy it to a file first" if source.exists() else "does not exist"
        raise InputError(f"{source} {what}")
    named = [name for name in (label, owner, split) if name is not None]
    table, said = _parquet(source) if source.suffix.lower() == ".parquet" else _text(source, named)
    columns = [str(column) for column in table.columns]
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise InputError(f"{source} has two columns called {twice[0]!r}; rename or remove one")
    table.columns = columns
    for name in (*named, *drop):
        _choose_column(source, name, columns)
    for name in named:
        if table[name].isna().any():
            row = int(table[name].isna().argmax())
            raise InputError(f"{source}: column {name!r} is empty in row {row} (NA, null and None are read as empty)")
    labels = _labels(source, label, table[label])
    features = table.drop(columns=[*named, *drop])
    result: Arrays = {"label": labels}
    if words := next((name for name in features if _names(features[name], labels)), None):
        result["words"] = table[words].to_numpy(str)
        features = features.drop(columns=words)
        said.append(f"column {words!r} has a word for each label, and is stored as these words")
    result["x"] = _features(source, features, said)
    result["feature_names"] = np.array(list(features), str)
    said += suspects(result["x"], list(features), labels, owner)
    if owner is not None:
        result["owner"] = table[owner].astype(str).to_numpy(str)
    if split is not None:
        for each in table[split].astype(str).unique():
            choose(f"value of column {split!r}", each, PARTS)
        result["test"] = (table[split] == "test").to_numpy()
    return result, said


def _choose_column(source: Path, name: str, columns: list[str]) -> None:
    few = columns if len(columns) <= 30 or name in columns else [*columns[:8], f"... ({len(columns)} columns)"]
    choose(f"column of {source}", name, few)


def _parquet(source: Path) -> tuple[Any, list[str]]:
    import pandas as pd
    import pyarrow.parquet as pq

    try:
        about = pq.ParquetFile(source).metadata
        size = 8 * about.num_rows * about.num_columns
        check_memory(source, 3 * size, "import fewer rows or columns")
        return pd.read_parquet(source), []
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read as a table: {error}") from error


def _text(source: Path, named: list[str]) -> tuple[Any, list[str]]:
    """A table of a text file, whatever its encoding and its separator, and what these are if they are unusual.

    The columns `named` are text.
    """
    import pandas as pd

    text, said = _decoded(source)
    first = next(csv.reader(io.StringIO(text)), [])
    line = text[: text.find("\n") + 1] or text
    fields = {each: next(csv.reader(io.StringIO(line), delimiter=each), []) for each in SEPARATORS}
    separator = max(SEPARATORS, key=lambda each: len(fields[each]))
    header = [name.strip() for name in (first if separator == "," else fields[separator])]
    if separator != ",":
        said.append(f"columns are separated by {SEPARATORS[separator]}")
    if twice := sorted({name for name in header if name and header.count(name) > 1 and not _is_number(name)}):
        raise InputError(f"{source} has two columns called {twice[0]!r}; rename or remove one")
    numbers = [_is_number(name) for name in header]
    headless = all(numbers) and header != [str(k) for k in range(len(header))]
    headless |= any(number and "." in name for number, name in zip(numbers, header, strict=True))  # 5.1 names no column
    options: dict[str, Any] = {"sep": separator, "low_memory": False, "skipinitialspace": True}
    options["dtype"] = {int(name) if headless and name.isdecimal() else name: str for name in named}
    options |= {"header": None} if headless else {}
    if headless:
        last = len(header) - 1
        said.append(f"it has no line of names, so the columns are called 0 to {last}, such as --label 0")
    try:
        table = pd.read_csv(io.StringIO(text), **options)
        rest = [table[name] for name in table.columns if str(name) not in named]
        if separator == ";" and any(map(_has_decimal_commas, rest)):
            table = pd.read_csv(io.StringIO(text), **options, decimal=",")
            said.append("commas in numbers are decimal points")
    except (OSError, ValueError) as error:  # pandas' parsing errors are ValueErrors
        raise InputError(f"{source} cannot be read as a table: {error}") from error
    if not isinstance(table.index, pd.RangeIndex):
        raise InputError(f"{source}: rows have more fields than the line of names; correct the names or the separators")
    if len(table.columns) and str(table.columns[0]) == "Unnamed: 0" and table.iloc[:, 0].is_unique:
        table = table.iloc[:, 1:]
        said.append("the first column has no name and numbers the rows (the index of `to_csv`): it was left out")
    return table, said


def _decoded(source: Path) -> tuple[str, list[str]]:
    limit = free_memory() or 2**40
    try:
        with gzip.open(source) if source.suffix.lower() == PACKED else open(source, "rb") as file:
            content = file.read(limit // 8)
            check_memory(source, 8 * (len(content) + len(file.read(1))), "import fewer rows or columns")
    except (OSError, EOFError) as error:
        raise InputError(f"{source} cannot be read as a table: {error}") from error
    if len(content) >= limit // 8:
        raise InputError(f"{source} needs more memory than is free; import fewer rows or columns")
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    for encoding, said in [("utf-16", ["read as UTF-16"])] if wide else [("utf-8-sig", []), ("cp1252", ["x"])]:
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" in text:
            break
        note = "it is not UTF-8 and was read as Windows-1252 (Latin-1): look at the words, or save it as UTF-8"
        return text, [note] if encoding == "cp1252" else list(said)
    if not wide and b"\0" not in content:
        return content.decode("latin-1"), ["it is not UTF-8 and was read as Latin-1: look at the words"]
    raise InputError(f"{source} cannot be read as text; save it as UTF-8")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_decimal_commas(column: Any) -> bool:
    return column.dtype.kind not in "iufb" and column.astype(str).str.fullmatch(r"\s*-?\d+(,\d+)?\s*").all()


def _labels(source: Path, label: str, column: Any) -> np.ndarray:
    """The labels as numbers or text; refused where they are no classes."""
    labels = column.to_numpy()
    if labels.dtype.kind not in "iufb":
        if others := [each for each in labels if not isinstance(each, str | int | float | np.generic)]:
            kind = type(others[0]).__name__
            raise InputError(f"{source}: column {label!r} holds values of type {kind}; a label is a word or a number")
        labels = _numbers(labels.astype(str))
    if labels.dtype.kind == "f" and (labels == np.rint(labels)).all() and abs(labels).max() < EXACT:
        labels = labels.astype(np.int64)
    classes = np.unique(labels)
    numbers = labels.dtype.kind in "iuf" or all(map(_is_number, classes.tolist()))
    broken = numbers and (classes.astype(float) != np.rint(classes.astype(float))).any()
    if (count := len(classes)) > 20 and (broken or 2 * count > len(labels)):
        what = "continuous" if numbers else "of which each names its row"
        raise InputError(
            f"{source}: column {label!r} has {count:,} values in {len(labels):,} rows, {what}. Classes are needed: "
            "group the values first (pandas.cut), or choose another --label"
        )
    return labels


def _numbers(words: np.ndarray) -> np.ndarray:
    """The words as numbers, where each is written as Python writes that number.

    >>> _numbers(np.array(["10", "2"])).tolist(), _numbers(np.array(["01", "1"])).tolist()
    ([10, 2], ['01', '1'])
    """
    for kind in (int, float):
        try:
            found = {word: kind(word) for word in np.unique(words).tolist()}
        except ValueError:
            continue
        numbers = np.array([found[word] for word in words.tolist()])
        if all(word == str(number) for word, number in found.items()) and numbers.dtype.kind in "if":
            return numbers
    return words


def _names(column: Any, labels: np.ndarray) -> bool:
    """Whether a column has a word of its own for each label, where labels are numbers."""
    if labels.dtype.kind not in "iuf" or column.dtype.kind in "iufbcmM" or column.isna().any():
        return False
    pairs = len({*zip(labels.tolist(), column.astype(str), strict=True)})
    return pairs == len(np.unique(labels)) == column.astype(str).nunique()


def _features(source: Path, features: Any, said: list[str]) -> np.ndarray:
    """The features as float32 `[n, columns]`; `said` grows by their names and by what float32 rounds."""
    import pandas as pd

    kinds = pd.api.types
    if words := [
        str(name)
        for name in features
        if not kinds.is_numeric_dtype(features[name]) or kinds.is_complex_dtype(features[name])
    ]:
        few = ", ".join(words[:8]) + ", ..." * (len(words) > 8)
        raise InputError(
            f"{source}: values that are not numbers in {few}; encode them (pandas.get_dummies), or leave them out: "
            f"--drop {' '.join(words[:8])}"
        )
    if not len(features.columns):
        raise InputError(f"{source} has no columns of features besides those named; add some")
    x = features.to_numpy(np.float64, na_value=np.nan)
    wrong = ~np.isfinite(x) | (np.abs(x) > np.finfo(np.float32).max)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        where = f"{source}: {features.columns[column]}"
        if np.isfinite(x[row, column]):
            raise InputError(f"{where} is {x[row, column]:g} in row {row}, beyond float32; rescale the column")
        raise InputError(f"{where} is empty or not a finite number in row {row}")
    names = [str(name) for name in features]
    said.append(f"{len(names)} features: {', '.join(names[:20])}{', ...' * (len(names) > 20)}")
    whole = [name for name, values in zip(names, x.T, strict=True) if _rounds(values)]
    if whole:
        said.append(f"whole numbers beyond {EXACT:,} are rounded (float32): {', '.join(whole[:8])}")
    return x.astype(np.float32)


def _rounds(values: np.ndarray) -> bool:
    return bool((np.abs(values) > EXACT).any() and (values == np.rint(values)).all())


def stem_of(source: Path) -> str:
    """A name of a data set for a source: letters, digits, _ and -.

    >>> stem_of(Path("my people.v2.csv.gz")), stem_of(Path(".hidden"))
    ('my_people_v2', 'hidden')
    """
    name = source.name
    for suffix in sorted((*TABLES, ".npz", ".json"), key=len, reverse=True):
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
            break
    return re.sub(r"[^\w-]+", "_", name).strip("_-")[:100]
