"""The command `fedlab data`: list the data sets here, fetch a missing one, check a file, import one."""

import argparse
import sys
from pathlib import Path

from fedlab_lite.data import import_tables, npz, sources
from fedlab_lite.util import InputError, choose, data_dir


def data(args: argparse.Namespace) -> int:
    """Run `fedlab data ACTION` and return its exit code."""
    return {"status": data_status, "fetch": data_fetch, "check": data_check, "import": data_import}[args.action](args)


def data_fetch(args: argparse.Namespace) -> int:
    if args.name is None:
        raise InputError(f"say which data set to fetch: {', '.join(sources.SOURCES)}")
    for path in sources.fetch(args.name):
        print(path)
    return 0


def data_status(args: argparse.Namespace) -> int:
    rows = sources.status()
    if args.name:
        choose("data set", args.name, [row.name for row in rows])
    for row in rows:
        if args.name in (None, row.name):
            print(f"{row.name}: {row.state}  {row.source}".rstrip())
            if row.how:
                print(row.how)
    return 0


def data_check(args: argparse.Namespace) -> int:
    if args.name is None:
        raise InputError("say which file to check: fedlab data check FILE.npz")
    found, wrong = npz.check(Path(args.name))
    if found is None:
        print(f"error: {args.name} is no data set:", *wrong, sep="\n  - ", file=sys.stderr)
        return 2
    x = found.arrays["x_train"]
    print(f"{args.name}: {found.describe()}\n{found.task}; x runs from {x.min():g} to {x.max():g}")
    if x.dtype == "uint8" and x.max() < 128:
        print("networks divide uint8 by 255, so these would be dark: multiply them, or make them floats")
    return 0


def data_import(args: argparse.Namespace) -> int:
    if args.name is None:
        raise InputError("say what to import: a .csv, a .parquet, or a folder of images")
    source = Path(args.name)
    output = args.output or npz.own_file(source.stem)
    options = {name: getattr(args, name) for name in ("label", "owner", "split", "test_fraction", "seed", "size")}
    made = import_tables.import_data(source, output, **options)
    print(f"{made.path}: {made.own.describe()}")
    print(f"labels: {', '.join(f'{number} {word}' for number, word in enumerate(made.labels))}")
    if made.path.resolve().parent == data_dir().resolve():
        print(f"a data set by the name of {made.path.stem!r}, for example -p dataset {made.path.stem}")
    else:
        print(f"put it into {data_dir()} (FEDLAB_DATA), and {made.path.stem!r} is a data set")
    return 0


def _size(text: str) -> tuple[int, int]:
    """Parse '32' or '32x48' as height and width."""
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def add_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlab data` to a parser."""
    sub.add_argument("action", choices=("status", "fetch", "check", "import"))
    sub.add_argument("name", nargs="?", metavar="NAME|FILE", help="a data set; check: an .npz; import: what to import")
    about = (
        "A .csv or .parquet with a row a sample, or a folder with one of images for each class (or train/ and test/ "
        "with such folders), becomes NAME.npz: x_train, y_train, x_test, y_test, and owner_train, owner_test."
    )
    group = sub.add_argument_group("import", about)
    group.add_argument("--output", type=Path, metavar="NAME.npz", help="default: the source's name, in FEDLAB_DATA")
    group.add_argument("--label", default="label", metavar="COLUMN", help="of a table: the class (default: label)")
    group.add_argument("--owner", metavar="COLUMN", help="of a table: whose the row is, for partition 'natural'")
    group.add_argument("--split", metavar="COLUMN", help="of a table: says train or test (default: drawn)")
    group.add_argument("--test-fraction", type=float, default=0.2, metavar="F", help="to test on (default: 0.2)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="draws the rows to test on (default: 0)")
    group.add_argument("--size", type=_size, metavar="N|HxW", help="what images are resized to")
