"""Section E: the command line in odd surroundings: streams, locales, homes, limits, and garbage as arguments."""

import contextlib
import math
import os
import random
import shlex
import string
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attacks.cases import ROOT, RUN, Outcome, Said, here, holds, judged, process, side_by_side, units
from fedlab_lite.papers import notebooks

TINY = "-p num_clients 3 -p num_rounds 1 -p train_size 60 -p test_size 30 -p seeds 0,"
COMPUTE = f"compute fedeq/fig04 {TINY}"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LATIN = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
NO_HOME = {"HOME": None, "XDG_CACHE_HOME": None, "FEDLAB_CACHE": None, "FEDLAB_DATA": None, "FEDLAB_RUNS": None}
NOWHERE = {"HOME": "/nonexistent/home"}
SHELL: dict[str, tuple[str, dict[str, str | None], str]] = {  # a command line, its surroundings, what it says ("a|b")
    "a reader that ends": ("{fedlab} list | head -1 >/dev/null", {}, ""),
    "report into head": ("{fedlab} report --full | head -1 >/dev/null", {}, ""),
    "help into a reader that is gone": ("{fedlab} run --help | true", {}, ""),
    "no stdout": ("{fedlab} list fedeq/fig04 >&-", {}, ""),
    "no streams": ("{fedlab} list fedeq/fig04 >&- 2>&- <&-", {}, ""),
    "no stderr, and an error": ("{fedlab} run zzz 2>&-", {}, ""),
    "a full disk for stdout": ("{fedlab} list > /dev/full", {}, "No space left"),
    "a full disk for stderr": ("{fedlab} run zzz 2> /dev/full", {}, ""),
    "a full disk for help": ("{fedlab} --help > /dev/full", {}, "No space left|"),
    "ASCII": ("{fedlab} list", ASCII, "notebook"),
    "ASCII, report": ("{fedlab} report --full", ASCII, "results"),
    "ASCII, algorithms": ("{fedlab} list algorithms", ASCII, "fedavg"),
    "Latin-1": ("{fedlab} list", LATIN, "notebook"),
    "20 columns": ("{fedlab} list fedeq/fig04", {"COLUMNS": "20"}, "fig04"),
    "no terminal": ("{fedlab} list fedeq/fig04", {"TERM": ""}, "fig04"),
    "bytes that are no text": ("{fedlab} run $(printf 'a\\377b')", {}, "no notebook"),
    "a data set of such bytes": ("{fedlab} data check $(printf 'a\\377b')", {}, "a"),
    "a folder that is gone": ("mkdir gone && cd gone && rmdir ../gone && {fedlab} list fedeq/fig04", {}, ""),
    "no home": ("{fedlab} data status cifar10", NO_HOME, ""),
    "a home that is not there": ("{fedlab} data status cifar10", NOWHERE, "cifar10"),
    "~nobodyhere": ("{fedlab} data status", {"FEDLAB_DATA": "~nobodyhere/x"}, "path without ~"),
    "no temporary folder": ("{fedlab} list fedeq/fig04", {"TMPDIR": "/nonexistent"}, "fig04"),
    "FEDLAB_COMMIT=0": ("{fedlab} run zzz", {"FEDLAB_COMMIT": "0"}, "no notebook"),
    "15,000 seeds": ("{fedlab} compute fig04_mlp -p seeds $(seq -s, 0 14999)", {}, "at most 1,000"),
    "an argument of 100,000 letters": ("{fedlab} run $(head -c 100000 /dev/zero | tr '\\0' a)", {}, "no notebook"),
    "a wrong platform": (f"{{fedlab}} {COMPUTE}", {"JAX_PLATFORMS": "wrong"}, "JAX_PLATFORMS"),
    "cuda without one": (f"{{fedlab}} {COMPUTE}", {"JAX_PLATFORMS": "cuda"}, "JAX_PLATFORMS"),
    "garbage in XLA_FLAGS": (f"{{fedlab}} {COMPUTE}", {"XLA_FLAGS": "--garbage=1"}, "XLA_FLAGS"),
    "no devices": (f"{{fedlab}} {COMPUTE}", {"JAX_NUM_CPU_DEVICES": "0"}, "JAX_NUM_CPU_DEVICES"),
    "devices: many": ("{fedlab} list", {"JAX_NUM_CPU_DEVICES": "many"}, "jax_num_cpu_devices"),
    "strict promotion": (f"{{fedlab}} {COMPUTE}", {"JAX_NUMPY_DTYPE_PROMOTION": "strict"}, "JAX_NUMPY_DTYPE_PROMOTION"),
    "a transfer guard": (f"{{fedlab}} {COMPUTE}", {"JAX_TRANSFER_GUARD": "disallow"}, "JAX_TRANSFER_GUARD"),
    "a cache in the cloud": (
        f"{{fedlab}} {COMPUTE}",
        {"JAX_COMPILATION_CACHE_DIR": "gs://nobody/xla"},
        "is gs://nobody",
    ),
    "a store in a file": (f"{{fedlab}} {COMPUTE}", {"FEDLAB_RUNS": "/dev/null/x"}, "cannot write"),
    "a store in /proc": (f"{{fedlab}} {COMPUTE}", {"FEDLAB_RUNS": "/proc/x"}, "cannot write"),
    "32 open files": (f"ulimit -n 32; {{fedlab}} {COMPUTE}", {}, ""),
    "32 open files, a notebook": ("ulimit -n 32; {fedlab} run fedeq/eq03", {}, ""),
    "little memory": (f"ulimit -v 1500000; {{fedlab}} {COMPUTE}", {}, "raise `ulimit -v`"),
    "files of 2 kB": ("ulimit -f 4; {fedlab} data import t.csv --output t.npz", {}, ""),
}
NO_STDERR = {"no stderr, and an error", "a full disk for stderr", "no streams"}


def shelled(folder: Path, case: str) -> Outcome:
    """A line for the shell; it ends in a result, or in one line that says what to do."""
    line, environment, words = SHELL[case]
    command = line.format(fedlab=shlex.join(RUN))
    where = folder / f"shell{abs(hash(case))}"
    where.mkdir()
    (where / "t.csv").write_text("a,b,label\n" + "".join(f"{k},{k * k % 7},{k % 3}\n" for k in range(3000)))
    said = process(["bash", "-c", command], cwd=where, env={"PYTHONPATH": str(ROOT), **environment}, seconds=90)
    outcome = judged(case, said, words, (0, 1, 2))
    left = [each.name for each in where.iterdir() if each.name not in ("t.csv", "t.npz")]
    if not outcome.wrong and left:
        return Outcome(case, f"it leaves {left}", "silent")
    if not outcome.wrong and case not in NO_STDERR and said.code == 2 and len(said.err.strip().splitlines()) > 3:
        return Outcome(case, f"{len(said.err.splitlines())} lines: {said.err[:300]}")
    return outcome


# --- garbage as arguments ---------------------------------------------------------------------------------------------

GIVEN = {  # what is typed: words, options, values
    "words": """list compute run runs report lab book data completion merge prune status fetch check import
        fedeq/fig04 learn * [ tab0 digits glyphs bash --help --version -h""",
    "options": """--preset -p --jobs --dask --minutes --only --pack --label --owner --split --range --size --drop
        --output --test-fraction --standardise --stored --committed --headline --force --clients-at-once
        --trajectories-at-once --tflops --floors --full --drafts --dry-run --yes -q""",
    "values": """0 -1 1e400 nan inf x { [1 lambda:0 __import__('os') /dev/null / . .. ~ ~x é True None {} [] quick
        paper 32x x32""",
}
WORDS, OPTIONS, VALUES = (text.split() for text in GIVEN.values())
VALUES += ["", "9" * 30, "(" * 200, "\x1b[2J", "a\tb", "\ud800"]
FIELDS = (
    "lr",
    "seeds",
    "num_rounds",
    "dataset",
    "partition",
    "overrides",
    "preset",
    "width",
    "num_clients",
    "alpha",
    "zzz",
)


def garbage(rng: random.Random) -> list[str]:
    words = [rng.choice(WORDS)]
    for _ in range(rng.randint(0, 5)):
        kind = rng.random()
        if kind < 0.3:
            words.append(rng.choice(WORDS))
        elif kind < 0.6:
            option = rng.choice(OPTIONS)
            values = [rng.choice(FIELDS)] if option == "-p" else []
            words += [option, *values, *([rng.choice(VALUES)] if rng.random() < 0.8 else [])]
        elif kind < 0.8:
            words.append(rng.choice(VALUES))
        else:
            words.append("".join(rng.choices(string.printable, k=rng.randint(1, 8))))
    return words


@contextlib.contextmanager
def nothing_is_computed() -> Iterator[list]:
    """In place of what takes long, or leaves this process."""
    from fedlab_lite.papers import book, cluster, computing, floors, lab, pages
    from fedlab_lite.runs import jobs

    done: list = []

    def nothing(*args: Any, **options: Any) -> Any:
        done.append(args)
        return 0

    places = [(notebooks, "compute"), (notebooks, "render"), (lab, "start"), (book, "build"), (pages, "write")]
    places += [
        (jobs, "compute"),
        (floors, "write"),
        (cluster, "distribute"),
        (computing, "setup"),
        (notebooks, "setup"),
    ]
    before = [(place, name, getattr(place, name)) for place, name in places]
    for place, name in places:
        setattr(place, name, nothing)
    cluster.distribute = lambda *args, **options: iter(())
    jobs.compute = lambda *args, **options: jobs.Outcome()
    floors.write = lambda *args: "nothing"
    pages.write = list
    try:
        yield done
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def answered(said: Said) -> None:
    assert said.code in (0, 1, 2), said.code
    assert said.code == 0 or said.err, "an error without a word"
    assert not {each for each in said.err + said.out if not each.isprintable() and each not in "\n\t"}, said.err[:200]


def typed(folder: Path, words: list[str]) -> None:
    for name in ("FEDLAB_BATCH", "FEDLAB_STORED_ONLY", "FEDLAB_COMMIT"):
        os.environ.pop(name, None)
    with contextlib.chdir(folder):
        answered(here(*words))


def parameters(values: list[str]) -> None:
    """Any text as a parameter of a notebook's runs."""
    answered(here("compute", "fedeq/fig04", *values))


TESTS = ("tests/test_cli.py",)
WORDS_OF_TESTS = "bad_input or usage or variable or long or seeds or help or quiet or typo or status or hostile"


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    rng = random.Random(seed)
    (folder / "typed").mkdir()
    with nothing_is_computed():
        for _ in range(math.ceil(1500 * share)):
            words = garbage(rng)
            yield holds(f"fedlab {words}", partial(typed, folder / "typed", words))
        for _ in range(math.ceil(500 * share)):
            values = [each for _ in range(rng.randint(1, 3)) for each in ("-p", rng.choice(FIELDS), rng.choice(VALUES))]
            yield holds(f"compute {values}", partial(parameters, values))
    limited = {case: partial(shelled, folder, case) for case in SHELL}
    yield from side_by_side(dict(list(limited.items())[: None if share == 1 else 0]))
    if share == 1:
        yield from units(*TESTS, words=WORDS_OF_TESTS)
