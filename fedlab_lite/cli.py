"""The command line: list, compute, run, report, book, data. `fedlab COMMAND --help` shows examples.

Exit codes: 0 success; 1 a notebook failed; 2 wrong input, or a file could not be read or written; 130 interrupted.
"""

import argparse
import ast
import contextlib
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from fedlab_lite.data import commands as cli
from fedlab_lite.papers import Item, book, notebooks, presets, report, results
from fedlab_lite.util import FedlabError, InputError, NotStoredError, choose, files, progress

Job = tuple[Item, str, dict]  # item, preset, parameters
TIMEOUT = 4  # seconds to wait for a scheduler's answer
EXTRAS = {  # package that is imported on use -> the extra that installs it
    **dict.fromkeys(("h5py", "matplotlib", "networkx", "pandas", "PIL", "pooch", "pyarrow"), "data"),
    "papermill": "notebooks",
}


def _console():
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def _values(pairs: Iterable[tuple[str, str]]) -> dict:
    """Parse `-p NAME VALUE` pairs; a value that is not a Python literal is text."""
    values = {}
    for name, text in pairs:
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values


def _number(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def list_items(args: argparse.Namespace) -> None:
    from rich.table import Table

    table = Table("notebook", "what it shows", *presets.PRESETS, show_lines=True)
    for item in presets.items(args.pattern, presets.ALL):
        minutes = [report.duration(presets.estimate(*item, preset)["minutes"]) for preset in presets.PRESETS]
        table.add_row(str(item), presets.item(*item)["title"], *minutes)
    _console().print(table)


def _options(args: argparse.Namespace) -> dict:
    """The options of `runs.run_all` that the command line sets."""
    at_once = {"trajectories_at_once": args.trajectories_at_once, "clients_at_once": args.clients_at_once}
    return {"force": args.force} | at_once


def _preset(args: argparse.Namespace, values: dict, takes: bool = True) -> tuple[str | None, dict]:
    """Separate the preset from the other values; `-p preset laptop` means the same as `--preset laptop`."""
    if "preset" not in values or not takes:
        return args.preset, values
    if args.preset not in (None, values["preset"]):
        raise InputError(f"--preset {args.preset} and -p preset {values['preset']} are two presets; give one")
    choose("preset", values["preset"], presets.PRESETS)
    return values["preset"], {name: value for name, value in values.items() if name != "preset"}


def compute(args: argparse.Namespace) -> None:
    preset, values = _preset(args, _values(args.parameter))
    for item in presets.items(args.pattern):
        count = notebooks.compute(item, preset or "quick", values, **_options(args))
        data = notebooks.data_of(item, preset or "quick", values)
        print(f"{item}  {preset or 'quick'}  {data}{count} runs in {files.runs_dir()}", flush=True)


def _jobs(args: argparse.Namespace) -> list[Job]:
    """The notebooks to run with their presets and parameters, checked before anything is computed."""
    values, jobs = _values(args.parameter), []
    if args.committed:
        for item, result in results.committed().items():
            file = notebooks.path(item)
            preset, own = _preset(args, values, "preset" in notebooks.parameters(file))
            preset = preset or result["preset"]
            known = notebooks.rules(file, result["parameters"] | {"preset": preset}).keys() - {"preset"}
            before = {k: v for k, v in result["parameters"].items() if k in known and v is not None}
            jobs.append((item, preset, before | own))
        if not jobs:
            raise InputError(f"no results in {files.figures_dir()}; run a notebook first")
    else:
        found = presets.headlines() if args.headline else presets.items(args.pattern, presets.ALL)
        for item in found:
            preset, own = _preset(args, values, "preset" in notebooks.parameters(notebooks.path(item)))
            jobs.append((item, preset or "quick", own))
    for item, preset, own in jobs:
        file = notebooks.path(item)
        notebooks.check_parameters(file, notebooks.with_preset(file, preset, own))
    return jobs


def _distributed(jobs: list[Job], args: argparse.Namespace) -> Iterable[Callable[[], str]]:
    """Run the jobs on a Dask cluster; yields functions that return the results, in order of completion."""
    try:
        import dask
        from distributed import Client, KilledWorker, LocalCluster, as_completed
    except ImportError as error:
        raise InputError("--jobs and --dask need Dask: pip install 'fedlab-lite[dist]'") from error

    def finish(future) -> str:
        try:
            return future.result()
        except KilledWorker as error:
            why = "its Dask worker was killed, twice, most likely for want of memory"
            raise notebooks.NotebookFailed(f"{items[future.key]}: {why}; try fewer --jobs, or a smaller one") from error

    with contextlib.ExitStack() as stack:
        cluster = args.dask
        if not cluster:
            fraction = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # share of a GPU's memory that each worker takes at its start
            own = {"env": {"FEDLAB_BATCH": "1", fraction: os.environ.get(fraction, f"{0.9 / args.jobs:.3f}")}}
            quiet = {
                "dashboard_address": ":0",
                "silence_logs": logging.CRITICAL,
            }  # a free port; results carry the errors
            stack.enter_context(
                dask.config.set({"distributed.scheduler.allowed-failures": 1})
            )  # retry a killed job once
            cluster = stack.enter_context(LocalCluster(n_workers=args.jobs, threads_per_worker=1, **own, **quiet))
        try:
            client = stack.enter_context(Client(cluster, timeout=TIMEOUT))
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(
                f"no Dask scheduler answers at {cluster} within {TIMEOUT} s ({type(error).__name__}); is it running "
                "(`dask scheduler`), and is that its address, as tcp://host:8786?"
            ) from error
        items, running, waiting = {}, as_completed(), iter(jobs)

        def submit(count: int | None) -> None:
            for job in itertools.islice(waiting, count):
                future = client.submit(notebooks.produce, *job, **_options(args), pure=False)
                items[future.key] = job[0]
                running.add(future)

        # Dask counts a worker's death against all jobs queued on it, so our own workers have no queue.
        submit(None if args.dask else args.jobs)
        for future in running:
            submit(1)
            yield partial(finish, future)


def run(args: argparse.Namespace) -> int:
    jobs = _jobs(args)
    for name, asked in (("FEDLAB_STORED_ONLY", args.stored), ("FEDLAB_COMMIT", args.commit)):
        if asked:
            os.environ[name] = "1"  # kernels and workers inherit it
    if args.dask or args.jobs > 1:
        waiting, shown = _distributed(jobs, args), None
    else:  # each job has its own progress bars
        waiting, shown = (partial(notebooks.produce, *job, **_options(args)) for job in jobs), False
    worst = 0
    with progress.progress_bar("notebooks", len(jobs), shown, "done") as tick:
        for done, finish in enumerate(waiting, start=1):
            try:
                print(f"[{done}/{len(jobs)}] {finish()}", flush=True)
            except NotStoredError as error:
                print(f"[{done}/{len(jobs)}] left as it is: {error}", flush=True)
            except (notebooks.NotebookFailed, FedlabError) as error:  # the other notebooks may still succeed
                worst = max(worst, 1 if isinstance(error, notebooks.NotebookFailed) else 2)
                print(f"[{done}/{len(jobs)}] error: {error}", file=sys.stderr, flush=True)
            tick(1)
    return worst


def show_report(args: argparse.Namespace) -> None:
    if args.write:
        for file in report.write():
            print(file)
        return
    found = results.drafts()
    if not args.drafts:
        found = results.committed() | found  # this machine's own results take precedence over committed ones
    if not found:
        raise InputError(f"no results in {files.drafts_dir()} yet; `fedlab run --headline` makes some")
    print(*report.lines(found, _console().width, args.full), sep="\n")
    print(f"figures and numbers: {files.drafts_dir()} (own runs), {files.figures_dir()} (committed)")


def make_book(args: argparse.Namespace) -> None:
    print(book.build(args.output or files.project_root() / "build" / "book" / "html", args.only or None))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="fedlab", description="Figures and tables of the papers, again.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, function: Callable, about: str, *examples: str) -> argparse.ArgumentParser:
        lines = "\n".join(f"  fedlab {example}" for example in examples)
        sub = commands.add_parser(
            name,
            help=about,
            description=about,
            epilog=f"examples:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # a mistyped option must be an error
        )
        sub.set_defaults(function=function)
        return sub

    pattern = {"metavar": "PATTERN", "help": "part of <paper>/<notebook>, or a shell pattern over it"}

    def options(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--preset", metavar="|".join(presets.PRESETS), help="size (default: quick)")
        sub.add_argument(
            "-p",
            "--parameter",
            nargs=2,
            action="append",
            default=[],
            metavar=("NAME", "VALUE"),
            help="replace a parameter; again for more",
        )
        at_once = {"type": _number, "metavar": "N"}
        sub.add_argument("--clients-at-once", **at_once, help="clients that an accelerator batches (default: all)")
        text = "seeds and members of a sweep that one program batches (default: 1; more for an accelerator)"
        sub.add_argument("--trajectories-at-once", default=1, **at_once, help=text)
        sub.add_argument("--force", action="store_true", help="forget stored runs; damaged files are set aside")
        sub.add_argument("-q", "--quiet", action="store_true", help="say nothing but what went wrong")

    sub = command("list", list_items, "What there is, and how long it takes.", "list", "list tab0", "list 'fedeq/fig*'")
    sub.add_argument("pattern", nargs="?", default="*", **pattern)

    sub = command(
        "compute",
        compute,
        "Fill the run store, without notebooks: needs numpy, jax, flax and optax; glyphs and digits also matplotlib.",
        "compute fedeq/tab03",
        "compute fedeq/fig04 --preset laptop",
        "compute fedeq/tab03 -p num_rounds 50 -p seeds 0,1,2",
    )
    sub.add_argument("pattern", **pattern)
    options(sub)

    sub = command(
        "run",
        run,
        "Compute what is missing, then run the notebooks: figures, and rendered notebooks under build/.",
        "run fedeq/tab03",
        "run fedeq/fig04 --preset laptop -p num_rounds 20",
        "run 'fedeq/*' --jobs 2",
        "run --headline",
        "run --committed",
    )
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("pattern", nargs="?", **pattern)
    which.add_argument("--headline", action="store_true", help="the headline notebook of each paper")
    which.add_argument("--committed", action="store_true", help="every figure there is, at the preset that it was made")
    options(sub)
    sub.add_argument("--stored", action="store_true", help="train nothing: leave out what is not stored")
    sub.add_argument("--commit", action="store_true", help="write to figures/, which git tracks, not to build/figures/")
    sub.add_argument(
        "--jobs", type=_number, default=1, metavar="N", help="notebooks at a time, on a local Dask cluster"
    )
    sub.add_argument("--dask", metavar="ADDRESS", help="run on the Dask cluster whose scheduler this is")

    sub = command(
        "report",
        show_report,
        "A line a claim: its verdict and why. Own runs where there are some, else what is committed.",
        "report",
        "report --full",
        "report --write",
    )
    sub.add_argument("--full", action="store_true", help="with all numbers, ours / published")
    sub.add_argument("--drafts", action="store_true", help="own runs alone")
    sub.add_argument("--write", action="store_true", help="bring READMEs, results pages and notebooks up to date")

    sub = command(
        "book",
        make_book,
        "The notebooks as a static site: of each what `run` rendered at the largest preset, else without outputs.",
        "book",
        "book fedeq/fig04 learn --output site",
    )
    sub.add_argument("only", nargs="*", metavar="PART", help="part of <paper>/<notebook>: those alone (default: all)")
    sub.add_argument("--output", type=Path, metavar="FOLDER", help="where the site goes (default: build/book/html)")

    sub = command(
        "data",
        cli.data,
        "Real data sets, published and your own: what is there, fetching what is not, checking and making a file.",
        "data status",
        "data status cifar10",
        "data fetch fashion_mnist",
        "data check mydigits.npz",
        "data import people.csv --label job --owner town",
        "data import photos/ --size 32 --output ~/data/photos.npz",
    )
    cli.add_arguments(sub)
    return top


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        with contextlib.ExitStack() as stack:
            if getattr(args, "quiet", False):
                os.environ["FEDLAB_BATCH"] = "1"  # kernels and workers inherit it
                stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            return args.function(args) or 0
    except FedlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        needs = f"this needs {error.name}, which is not installed: pip install 'fedlab-lite[{EXTRAS[error.name]}]'"
        print(f"error: {needs}", file=sys.stderr)
        return 2
