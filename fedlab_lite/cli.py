"""The command line: list, compute, run, report, lab, book, data, ... `fedlab COMMAND --help` shows examples.

Exit codes: 0 success; 1 a notebook or a run failed, or a reader such as `head` ended; 130 interrupted. 2 is for wrong
input, or for a file that could not be read or written.
"""

import argparse
import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import fedlab_lite
from fedlab_lite.data import commands
from fedlab_lite.papers import (
    arguments,
    book,
    cluster,
    computing,
    gallery,
    lab,
    notebooks,
    pages,
    presets,
    report,
    results,
    tables,
    variants,
)
from fedlab_lite.util import FedlabError, NotStoredError, choose, files, progress
from fedlab_lite.util.text import say

EXTRAS = {  # package that is imported on use -> the extra that installs it
    **dict.fromkeys(("h5py", "matplotlib", "networkx", "pandas", "PIL", "pyarrow"), "data"),
    "papermill": "notebooks",
    "shtab": "completion",
}
NAMES = "_fedlab_notebooks"  # the function of the shell that completes names of notebooks


def _options(args: argparse.Namespace) -> dict:
    """The options of `runs.run_all` that the command line sets."""
    return {name: getattr(args, name) for name in ("force", "trajectories_at_once", "clients_at_once")}


# --- the commands: the docstring is what `--help` shows -----------------------------------------------------------


def list_items(args: argparse.Namespace) -> None:
    """List the notebooks and their times; or settings, algorithms, models, data sets; or what `paper` has to compute.

    examples:
      fedlab list
      fedlab list 'fedeq/fig*'
      fedlab list settings
      fedlab list algorithms fedeq
      fedlab list models
      fedlab list datasets
      fedlab list --floors --tflops 40
    """
    if args.floors or args.write:
        computing.show_floors(args, tables.console())
    else:
        tables.console().print(tables.table(args.pattern, args.name))


def compute_runs(args: argparse.Namespace) -> int:
    """Train and store the runs of notebooks. Needs numpy, jax, flax and optax, and for glyphs and digits matplotlib.

    With --minutes, --jobs, --only or --pack it computes what is missing of all of them: undecided claims first, then by
    time. What is finished in time is stored, and the same command goes on with the rest.

    examples:
      fedlab compute fedeq/tab03
      fedlab compute fedeq/fig04 --preset laptop
      fedlab compute fedeq/tab03 -p num_rounds 50 -p seeds 0,1,2
      fedlab compute fedf_admm --preset paper --minutes 9 --jobs 4 --pack runs.zip
    """
    preset, values = arguments.preset_of(args, variants.parsed(args.parameter))
    preset = preset or "quick"
    if any(value is not None for value in (args.minutes, args.jobs, args.only, args.pack)):
        return computing.compute(args, preset, values)
    for item in presets.items(args.pattern):
        count = notebooks.compute(item, preset, values, **_options(args))
        data = notebooks.data_of(item, preset, values)
        say(f"{item}  {preset}  {data}{count} runs in {files.runs_dir()}")
    return 0


def manage_runs(args: argparse.Namespace) -> None:
    """Add runs of another machine (`compute --pack`) to the store; or remove what is not needed, after a question.

    examples:
      fedlab runs merge runs.zip runs-2.zip
      fedlab runs prune --dry-run
    """
    computing.runs(args)


def run_notebooks(args: argparse.Namespace) -> int:
    """Train the missing runs, then run the notebooks: writes figures and rendered notebooks to build/.

    A run with other parameters than the preset's has a name of its own there, which says them.

    examples:
      fedlab run fedeq/tab03
      fedlab run fedeq/fig04 --preset laptop -p num_rounds 20
      fedlab run 'fedeq/*' --jobs 2
      fedlab run --headline
      fedlab run --committed
    """
    jobs = arguments.jobs(args)
    for name, asked in (("FEDLAB_STORED_ONLY", args.stored), ("FEDLAB_COMMIT", args.commit)):
        if asked:
            os.environ[name] = "1"  # kernels and workers inherit it
    if args.dask or args.jobs > 1:
        waiting, shown = cluster.distribute(jobs, args.jobs, args.dask, **_options(args)), None
    else:  # each job has its own progress bars
        waiting, shown = (partial(notebooks.produce, *job, **_options(args)) for job in cluster.one_by_one(jobs)), False
    worst = skipped = 0
    with progress.progress_bar("notebooks", len(jobs), shown, "done") as tick:
        for done, finish in enumerate(waiting, start=1):
            try:
                say(f"[{done}/{len(jobs)}] {finish()}")
            except NotStoredError as error:
                skipped += 1
                say(f"[{done}/{len(jobs)}] skipped: {error}")
            except (notebooks.NotebookFailed, FedlabError) as error:  # the other notebooks may still succeed
                worst = max(worst, 1 if isinstance(error, notebooks.NotebookFailed) else 2)
                say(f"[{done}/{len(jobs)}] error: {error}", error=True)
            tick(1)
    if skipped == len(jobs):
        say("nothing was drawn: each notebook lacks stored runs or data; without --stored its runs are trained")
    return worst


def show_report(args: argparse.Namespace) -> None:
    """Print one line per claim: its verdict and the reason. Own runs follow the committed results.

    examples:
      fedlab report
      fedlab report fedeq
      fedlab report --full
      fedlab report --write
    """
    if args.write:
        say(*pages.write())
        return
    say(*report.printed(args.pattern, own=args.drafts, full=args.full))
    if own := results.drafts():
        say(f"open {gallery.write_page(own)}")


def open_lab(args: argparse.Namespace) -> None:
    """Open the notebooks in JupyterLab, with the pictures that lie beside them; takes JupyterLab's options, too.

    examples:
      fedlab lab
      fedlab lab --no-browser --port 8899
      fedlab lab --allow-root
    """
    lab.start(args.others)


def make_book(args: argparse.Namespace) -> None:
    """Build a static site of the notebooks, each as `run` rendered it at the largest preset, or without outputs.

    examples:
      fedlab book
      fedlab book fedeq/fig04 learn --output site
    """
    say(book.build(args.output or files.project_root() / "build" / "book" / "html", args.only or None))


def manage_data(args: argparse.Namespace) -> None:
    """List, fetch, check and import data sets: published ones and your own.

    examples:
      fedlab data status
      fedlab data status cifar10
      fedlab data fetch fashion_mnist
      fedlab data check mydigits.npz
      fedlab data import people.csv --label job --owner town
      fedlab data import photos/ --size 32 --output ~/data/photos.npz
    """
    commands.data(args)


def print_completion(args: argparse.Namespace) -> None:
    """Print a script with which bash or zsh completes commands, options and names of notebooks.

    examples:
      fedlab completion bash > ~/.local/share/bash-completion/completions/fedlab
      fedlab completion zsh > ~/.zfunc/_fedlab
    """
    import shtab

    names = " ".join(map(str, presets.items(of=presets.ALL)))
    words = {"bash": f'{NAMES}() {{ compgen -W "{names}" -- "$1"; }}', "zsh": f"{NAMES}() {{ compadd -- {names} }}"}
    print(shtab.complete(parser()[0], args.shell, preamble=words))


# --- their arguments ----------------------------------------------------------------------------------------------


def parser() -> tuple[argparse.ArgumentParser, Collection[str]]:
    """The parser of the command line, and the names of the commands."""
    top = arguments.Parser(prog="fedlab", description="Reproduce the figures and tables of the papers.")
    top.add_argument("--version", action="version", version=f"fedlab_lite {fedlab_lite.__version__}")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, function: Callable) -> argparse.ArgumentParser:
        about, _, examples = str(inspect.getdoc(function)).partition("\n\n")
        raw = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}  # a typo is an error
        sub = subparsers.add_parser(name, help=about, description=about, epilog=examples, **raw)
        sub.set_defaults(function=function)
        return sub

    pattern = {"metavar": "PATTERN", "help": "part of <paper>/<notebook>, or a shell pattern for it"}
    by_name = dict.fromkeys(("bash", "zsh"), NAMES)
    number = {"type": computing.whole, "metavar": "N"}

    def add_options(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--preset", metavar="|".join(presets.PRESETS), help="size of the runs (default: quick)")
        pairs = {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")}
        sub.add_argument("-p", "--parameter", **pairs, help="set a parameter; may be repeated")
        sub.add_argument("--clients-at-once", **number, help="clients per batch on an accelerator (default: chosen)")
        text = "seeds and members of a sweep per batch (default: 1; use more on an accelerator)"
        sub.add_argument("--trajectories-at-once", default=1, **number, help=text)
        sub.add_argument("--force", action="store_true", help="train again what is stored; damaged files are renamed")
        sub.add_argument("-q", "--quiet", action="store_true", help="print only errors")

    sub = command("list", list_items)
    words = f"{pattern['help']}; or {', '.join(tables.REGISTERS)}"
    sub.add_argument("pattern", nargs="?", default="*", **pattern | {"help": words}).complete = by_name
    sub.add_argument("name", nargs="?", metavar="NAME", help="of an algorithm or a model: its options")
    computing.list_arguments(sub)

    sub = command("compute", compute_runs)
    sub.add_argument("pattern", **pattern).complete = by_name
    add_options(sub)
    computing.compute_arguments(sub)
    computing.merge_arguments(command("runs", manage_runs))

    sub = command("run", run_notebooks)
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("pattern", nargs="?", **pattern).complete = by_name
    which.add_argument("--headline", action="store_true", help="the headline notebook of each paper")
    which.add_argument("--committed", action="store_true", help="every committed figure, at its own preset")
    add_options(sub)
    sub.add_argument("--stored", action="store_true", help="train nothing; skip notebooks whose runs are not stored")
    sub.add_argument("--commit", action="store_true", help="write to figures/ (tracked by git), not to build/figures/")
    sub.add_argument("--jobs", default=1, **number, help="notebooks to run at the same time, on a local Dask cluster")
    sub.add_argument("--dask", metavar="ADDRESS", help="run on the Dask cluster with the scheduler at this address")

    sub = command("report", show_report)
    sub.add_argument("pattern", nargs="?", default="*", **pattern).complete = by_name
    sub.add_argument("--full", action="store_true", help="print all numbers too, ours / published")
    sub.add_argument("--drafts", action="store_true", help="only own runs")
    sub.add_argument("--write", action="store_true", help="update READMEs, results pages and notebooks")

    command("lab", open_lab)
    sub = command("book", make_book)
    sub.add_argument("only", nargs="*", metavar="PART", help="part of <paper>/<notebook> to build (default: all)")
    sub.add_argument("--output", type=Path, metavar="FOLDER", help="folder of the site (default: build/book/html)")

    commands.add_arguments(command("data", manage_data))
    command("completion", print_completion).add_argument("shell", choices=("bash", "zsh"))
    return top, subparsers.choices


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    top, known = parser()
    try:
        if argv and not argv[0].startswith("-"):
            choose("command", argv[0], known)
        args, others = top.parse_known_args(argv)
        if others and args.function is not open_lab:
            top.error(f"unrecognized arguments: {' '.join(others)}")
        args.others = others
        with contextlib.ExitStack() as stack:
            if getattr(args, "quiet", False):
                os.environ["FEDLAB_BATCH"] = "1"  # kernels and workers inherit it
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            return args.function(args) or 0
    except FedlabError as error:
        say(f"error: {error}", error=True)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        needs = f"this needs {error.name}, which is not installed: pip install 'fedlab-lite[{EXTRAS[error.name]}]'"
        say(f"error: {needs}", error=True)
        return 2
