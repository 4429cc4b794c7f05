"""The commands for a short loan of a machine: floors of what is to compute, computing within a time, merging packs."""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax

from fedlab_lite.engine import setup
from fedlab_lite.papers import floors, presets, pruning, worth
from fedlab_lite.runs import jobs, pack
from fedlab_lite.runs.floors import TFLOPS
from fedlab_lite.util import InputError, MissingDataError, files
from fedlab_lite.util.text import say


def list_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--floors", action="store_true", help="what the runs of preset `paper` have to compute")
    sub.add_argument("--tflops", default=TFLOPS, type=_positive, metavar="X", help="speed of the device (default: 20)")
    sub.add_argument("--write", action="store_true", help="count the floors anew and store them (minutes per notebook)")


def compute_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--minutes", type=_positive, metavar="M", help="time for everything; what is finished is stored")
    sub.add_argument("--jobs", type=whole, metavar="N", help="processes that share an accelerator (default: 1)")
    sub.add_argument("--only", metavar="ALGORITHM", help="leave out the runs of other algorithms")
    sub.add_argument("--pack", type=Path, metavar="FILE", help="pack what is stored into FILE (.zip), at most 16 MiB")


def merge_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("action", choices=["merge", "prune"], help=f"merge packs; or {pruning.OFFERED}")
    sub.add_argument("files", nargs="*", type=Path, metavar="FILE", help="merge: packs that `compute --pack` wrote")
    sub.add_argument("--dry-run", action="store_true", help="prune: list what could be removed, and remove nothing")
    sub.add_argument("--yes", action="store_true", help="prune: remove it without a question")


def whole(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _positive(text: str) -> float:
    """Parse a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def show_floors(args: argparse.Namespace, console: Any) -> None:
    """Print the floor of each notebook that trains at `paper`."""
    from rich.table import Table

    items = presets.items(args.pattern)
    if args.write:
        setup(devices=1)  # sizes of clients that devices send each other could not be followed
        say(floors.write(items))
    units = ("trajectories", "PFLOP", "padding", "steps", "TB", "GB at once", f"minutes at {args.tflops:g} TFLOP/s")
    table = Table("notebook at paper", *units)
    for item in items:
        if floor := floors.stored(item):
            numbers = (*floor[2:], floor.minutes(args.tflops))
            table.add_row(str(item), str(floor.trajectories), *(f"{number:,.3g}" for number in numbers))
    console.print(table)
    if old := [str(item) for item in items if not floors.fresh(item)]:
        say(f"not counted with their present settings: {', '.join(old)}; --write counts them", error=True)


def compute(args: argparse.Namespace, preset: str, values: dict[str, Any]) -> int:
    """Compute what is missing, by several processes, until it is done or the time is over; returns the exit code.

    Runs whose data are not on this machine, or whose stored file is damaged, are left out, and named at the end. A pack
    has all these runs that are in the store, those of earlier commands too.
    """
    began = time.monotonic()
    if args.pack:
        pack.check(args.pack)
    jax.config.update("jax_platforms", "cpu")  # of this process: the accelerator's memory is for those that compute
    plan = partial(worth.programs, presets.items(args.pattern), preset, values, only=args.only)
    every = plan(force=True)[0] if args.pack else []  # now: nothing is planned after the deadline
    todo, lacking = plan(force=args.force)
    if lacking and not todo:
        raise MissingDataError("\n".join(lacking))
    options = {name: getattr(args, name) for name in ("force", "trajectories_at_once", "clients_at_once")}
    found = jobs.Outcome()
    try:
        if todo or not args.pack:
            found = jobs.compute(todo, jobs=args.jobs or 1, minutes=args.minutes, began=began, **options)
    finally:
        say(*(f"error: {each}" for each in lacking), error=True)
    say(*(f"error: {each}" for each in found.problems), error=True)
    say(f"{len(found.finished)} runs finished, {len(found.begun)} begun, {found.left} left, in {files.runs_dir()}")
    if args.pack:
        written, left = pack.pack([run for each in every for run in each.runs], args.pack)
        say(*written, *(f"not packed, because it fills more than a pack: {each}" for each in left))
        if not written:
            say("no pack was written: no run has a file that fits into one", error=True)
    return 1 if found.problems or lacking else 0


def runs(args: argparse.Namespace) -> None:
    """Do what `fedlab runs ACTION` asks for. Raises `InputError` for what belongs to the other action."""
    options = [option for option, given in (("--dry-run", args.dry_run), ("--yes", args.yes)) if given]
    if wrong := options if args.action == "merge" else list(map(str, args.files)):
        raise InputError(f"`fedlab runs {args.action}` takes no {', '.join(wrong)}; see `fedlab runs --help`")
    {"merge": merge, "prune": pruning.prune}[args.action](args)


def merge(args: argparse.Namespace) -> None:
    """Add the files of packs to the store."""
    if not args.files:
        raise InputError("no pack to merge: fedlab runs merge FILE")
    for file in args.files:
        added, others = pack.merge(file)
        say(f"{file}: {len(added)} files added, {len(others)} not taken, in {files.runs_dir()}")
        say(*(f"  {name}: {reason}" for name, reason in others.items() if name.endswith(".ckpt")))
