"""The command `fedlab data`: list the data sets here, fetch a missing one, check a file, import one."""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlab_lite.data import importing, npz, ranges, sources, which
from fedlab_lite.data.pool import Pool
from fedlab_lite.util import CorruptFileError, InputError, choose, data_dir
from fedlab_lite.util.text import say


class Status(NamedTuple):
    """One row of `status()`; state is 'ready', 'damaged' or 'missing'."""

    name: str
    state: str
    source: str
    how: str


def status() -> list[Status]:
    """The state of the data sets on this machine: one row per published data set and per own file."""
    rows = []
    for name in dict.fromkeys((*sources.SOURCES, *npz.own_names())):
        there = which.here(name)
        if not there:
            rows.append(Status(name, "missing", "", sources.how_to_get(name)))
        for kind in there.keys() - {"embedded"}:
            about, paths = sources.there(name) if kind == "official" else ("own file", [npz.own_file(name)])
            where = paths[0] if len(paths) == 1 else paths[0].parent
            state, how = "ready", ""
            try:
                if kind == "npz":
                    about += f": {which.load(f'npz:{name}').describe()}"
                for path in paths if about == "official" else ():
                    sources.verified(name, path.name, path.read_bytes(), path)
            except (CorruptFileError, InputError) as error:
                state, how = "damaged", str(error)
            shown = f"npz:{name}" if kind == "npz" and len(there) > 1 else name
            rows.append(Status(shown, state, f"{where} ({about})", how))
    return rows


def data(args: argparse.Namespace) -> None:
    """Run `fedlab data ACTION`."""
    if args.name is None and args.action != "status":
        raise InputError(f"the name of the data set or file is missing: fedlab data {args.action} NAME")
    {"status": data_status, "fetch": data_fetch, "check": data_check, "import": data_import}[args.action](args)


def data_status(args: argparse.Namespace) -> None:
    rows = status()
    if args.name:
        choose("data set", args.name, [row.name for row in rows])
    for row in rows:
        if args.name in (None, row.name):
            say(f"{row.name}: {row.state}  {row.source}".rstrip(), *filter(None, [row.how]))


def data_fetch(args: argparse.Namespace) -> None:
    say(*sources.fetch(args.name))


def data_check(args: argparse.Namespace) -> None:
    file = Path(args.name) if args.name.endswith(".npz") else npz.own_file(args.name)
    pool = npz.read(file, which.published(file.stem))
    x = pool.x_train
    _show(args.name, pool)
    if pool.feature_names:
        say(f"features: {', '.join(pool.feature_names[:20])}{', ...' * (len(pool.feature_names) > 20)}")
    white = ranges.WHITE.get(x.dtype)
    seen = "networks see " + (f"x / {white}, 0 to 1" if white else f"{x.min():g} to {x.max():g}")
    if pool.x_range is None:
        say(f"{pool.task}; x runs from {x.min():g} to {x.max():g}; {seen}")
    else:
        kind = "by its pixels' range" if np.ndim(pool.x_range) == 1 else "by a mean and a deviation per column"
        say(f"{pool.task}; x is scaled {kind} (x_range in the file); {seen}")
    for words in ranges.judged((x, pool.x_test), pool.feature_names):
        say(f"warning: {words}")


def _show(what: object, pool: Pool) -> None:
    """Print what a data set holds, and the words for its labels."""
    say(f"{what}: {pool.describe()}")
    if pool.label_words:
        say(f"labels: {', '.join(f'{number} {word}' for number, word in enumerate(pool.label_words))}")


def data_import(args: argparse.Namespace) -> None:
    names = ("label", "owner", "split", "drop", "test_fraction", "size", "pixel_range", "standardise", "overwrite")
    options = {name: getattr(args, name) for name in names}
    path, pool, said = importing.import_data(Path(args.name), args.output, **options)
    _show(path, pool)
    for words in said:
        say(words)
    if path == npz.own_file(path.stem):
        say(f"it is a data set of this name: -p dataset {path.stem}")
    else:
        say(f"in {data_dir()} (FEDLAB_DATA) it is a data set of its name: -p dataset {path.stem}")


def _size(text: str) -> tuple[int, int]:
    """Parse '32' or '32x48' as height and width."""
    height, _, width = text.partition("x")
    size = int(height), int(width or height)
    if min(size) < 1:
        raise ValueError  # argparse says which argument it was
    return size


def add_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlab data` to a parser."""
    sub.add_argument("action", choices=("status", "fetch", "check", "import"))
    sub.add_argument("name", nargs="?", metavar="NAME|FILE", help="data set; .npz (check); table or folder (import)")
    about = (
        "A table (.csv, .tsv, .csv.gz, .parquet) with one row per sample, a folder with one folder of images per class "
        "(or train/ and test/ with such folders), arrays (.npz) of MedMNIST, Keras or torchvision, or the JSON of LEAF "
        "become NAME.npz. "
        "It says each conversion."
    )
    group = sub.add_argument_group("import", about)
    group.add_argument("--output", type=Path, metavar="NAME.npz", help="file to write (default: in FEDLAB_DATA)")
    group.add_argument("--label", default="label", metavar="COLUMN", help="column of the class (default: label)")
    group.add_argument("--owner", metavar="COLUMN", help="column of the owner of each row, for partition 'natural'")
    group.add_argument("--split", metavar="COLUMN", help="column of a table: train or test (default: drawn at random)")
    drop = {"nargs": "+", "action": "extend", "default": [], "metavar": "COLUMN"}
    group.add_argument("--drop", **drop, help="columns of a table to leave out")
    group.add_argument("--test-fraction", type=float, default=0.2, metavar="F", help="rows to test on (default: 0.2)")
    group.add_argument("--size", type=_size, metavar="N|HxW", help="size to which images are resized")
    limits = {"type": float, "nargs": 2, "metavar": ("LOW", "HIGH"), "dest": "pixel_range"}
    group.add_argument("--range", **limits, help="black and white of the pixels: networks see them as 0 and 1")
    whole = "columns of a table: networks see them with mean 0 and deviation 1"
    group.add_argument("--standardise", action="store_true", help=whole)
    group.add_argument("--overwrite", action="store_true", help="replace the file that is to be written")
