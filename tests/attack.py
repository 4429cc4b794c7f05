"""An attack on the suite: kills, damaged files, full disks, two writers, bad input; prints a table of what came of it.

    make attack                                            # all of it, about ten minutes on two cores
    python tests/attack.py --kills 4 --mutations 100       # less; --seed N draws other moments, bits and values

A case is clear if it ends in the result that an undisturbed run has, or in one of the package's own errors, which name
what was wrong; anything else (a traceback, another number, something written elsewhere) is not, and is printed.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import resource
import sys
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from helpers import history, recorded
from kill_and_resume import JOBS, finish, kill_and_resume, left_by, start

from fedlab_lite import cli
from fedlab_lite.data import load
from fedlab_lite.papers import notebooks, presets, results
from fedlab_lite.runs import Settings, runner, store
from fedlab_lite.util import FedlabError, files, jax_setup
from fedlab_lite.util.fields import rules_of

ENVIRONMENT = ("FEDLAB_CACHE", "FEDLAB_DATA", "FEDLAB_RUNS", "FEDLAB_FIGURES")


class Outcome(NamedTuple):
    """Of one case: what was tried, '' or what is not clear about it, and how many tries it stands for."""

    case: str
    wrong: str = ""
    tries: int = 1


def ends(case: str, attempt: Callable[[], object], words: str = "", may_pass: bool = False) -> Outcome:
    """Whether an attempt ends in an error of the package's own that contains one of these words ("a|b")."""
    try:
        attempt()
    except FedlabError as error:
        said = any(word in str(error).lower() for word in words.lower().split("|"))
        return Outcome(case, "" if said else f"says nothing of {words!r}: {error}")
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(case, f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}")
    return Outcome(case, "" if may_pass else "passes")


# --- kills, full disks, two writers -----------------------------------------------------------------------------------


def kills(number: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """SIGKILL at random moments of runs, sweeps, searches and figures, then resumed."""
    share = -(-number // len(JOBS))
    with ThreadPoolExecutor(2) as pool:
        jobs = {job: pool.submit(kill_and_resume, share, folder / job, seed, job) for job in JOBS}
        for job, result in jobs.items():
            found = result.result()
            clear = found["same"] and not found["checkpoints left"]
            yield Outcome(f"kills of {job}", "" if clear else str(found), share)


def full_disks(number: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """No file may grow beyond a limit, as where the disk is full; afterwards the same command does it after all."""
    finish(start(folder / "calm", 40))
    calm = left_by(folder / "calm")
    for limit in random.Random(seed).sample(range(100, 60_000), number):

        def lower(limit=limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        process = start(folder / f"full{limit}", 40, stderr=-1, preexec_fn=lower)
        _, said = process.communicate()
        clear = process.returncode == 0 or "OutputError: cannot write" in said.splitlines()[-1]
        finish(start(folder / f"full{limit}", 40))
        same = left_by(folder / f"full{limit}") == calm
        yield Outcome(f"files of {limit} bytes at most", "" if clear and same else f"same: {same}; {said[-300:]}")


def two_writers(number: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Two processes that do the same at the same time in the same place."""
    for job in itertools.islice(itertools.cycle(JOBS), number):
        with contextlib.suppress(FileExistsError):
            finish(start(folder / f"{job} alone", 60, job))
        pair = [start(folder / f"{job} shared", 60, job) for _ in range(2)]
        codes = [process.communicate() and process.returncode for process in pair]
        same = left_by(folder / f"{job} shared") == left_by(folder / f"{job} alone")
        yield Outcome(f"two writers of {job}", "" if codes == [0, 0] and same else f"{codes}, same: {same}")


# --- damaged files ----------------------------------------------------------------------------------------------------


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Flipped bits, a cut, zeros, something inserted, a part twice, nothing."""
    at, length = rng.randrange(len(content)), rng.randint(1, 64)
    kind = rng.choice(("flip", "flip", "flip", "cut", "zeros", "insert", "twice", "random", "empty"))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    new = {"cut": b"", "zeros": bytes(length), "insert": rng.randbytes(length) + content[at : at + length]}
    new |= {"twice": 2 * content[at : at + length], "random": rng.randbytes(length), "empty": b""}
    if kind == "empty":
        return b""
    return content[:at] + new[kind] + (b"" if kind == "cut" else content[at + length :])


def victims(folder: Path) -> dict[str, tuple[Path, Callable[[], object]]]:
    """Files, and what reading each gives: the same as before, or an error. None: its content has no checksum."""
    rng = np.random.default_rng(0)
    one = history(rng.random((2, 9)), (0, 1))
    part = runner.replace(one, seeds=(0,), diverged=(False,), metrics={"a": one.metrics["accuracy"][:1]})
    run = store.save_history("run", runner.replace(part, client_curves=part.client_curves[:1], settings=None))
    tree = {"state": {"0": rng.random(50)}, "progress": {"next": 3}}
    ckpt, state = (store.save_tree(store.path("run", kind), tree) for kind in ("ckpt", "state"))
    program = files.write_atomic(folder / "xla" / "jit_a-cache", zlib.compress(rng.bytes(500)))
    kinds = {
        "a finished run": (run, lambda: vars(store.load_history("run")) and store.load_arrays(run)),
        "a checkpoint": (ckpt, lambda: store.load_checkpoint(ckpt)),
        "a final state": (state, lambda: store.load_state(state)),
        "a compiled program": (program, lambda: program_of(program)),
    }
    own = files.data_dir() / "cifar10.npz"
    own.parent.mkdir(parents=True, exist_ok=True)
    images = rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    np.savez_compressed(own, x_train=images, y_train=np.arange(6), x_test=images, y_test=np.arange(6))
    kinds["arrays of one's own"] = (own, lambda: load.which.load("cifar10"))
    figure = files.figures_dir() / "fedeq" / "fig04_mlp_vs_deq_mlp.json"
    about = recorded(presets.Item("fedeq", figure.stem), "quick", word="seen", scope="stand-in")
    files.write_atomic(figure, json.dumps(about).encode())
    kinds["a result"] = (figure, lambda: results.read_result(figure))
    return kinds


def program_of(file: Path) -> bytes | str:
    """What JAX reads after `setup`; it compiles again what is not there or cannot be decompressed."""
    jax_setup.remove_damaged(file.parent)
    try:
        return zlib.decompress(file.read_bytes())
    except (FileNotFoundError, zlib.error):
        return "compiled again"


UNCHECKED = ("arrays of one's own", "a result")  # text that git has, arrays whose SHA-256 the source says


def mutations(number: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Each kind of file altered at random: the same content, or an error; never another number, never a traceback."""
    rng, kinds = random.Random(seed), victims(folder)
    share = -(-number // len(kinds))
    for what, (file, read) in kinds.items():
        whole, expected, wrong = file.read_bytes(), repr(read()), []
        for _ in range(share):
            file.write_bytes(mutated(whole, rng))
            seen = []
            outcome = ends(what, lambda read=read, seen=seen: seen.append(repr(read())), may_pass=True)
            healed = what == "a compiled program" and seen == ["'compiled again'"]
            if outcome.wrong or (seen and seen != [expected] and what not in UNCHECKED and not healed):
                wrong.append(outcome.wrong or "another content is read without a word")
        file.write_bytes(whole)
        yield Outcome(f"{what} altered", f"{len(wrong)} times, such as: {wrong[0]}" if wrong else "", share)


# --- bad input --------------------------------------------------------------------------------------------------------

NUMBER = (-1, "many", [], float("nan"), True)
SETTINGS = {  # field: values that cannot be; the error says the field's name
    "dataset": ("", "glyfs", 3, "../digits"),
    "partition": ("", "by_labels", None),
    "model": ("mlpp", None, 7),
    "algorithm": ("fedavgg", None, []),
    **dict.fromkeys(("num_clients", "classes_per_client", "train_size", "cohort_size", "eval_every"), (*NUMBER, 0)),
    **dict.fromkeys(("num_rounds", "data_seed", "shared_size", "graph_seed", "validation_size"), NUMBER),
    "unseen_clients": (-1, 20, "x"),
    "alpha": (0.0, -1, float("nan"), "x"),
    "budgets": ((1,), (0,) * 20, "x"),
    "graph": ("rings", 3),
    "fusion": ("ownn", None),
    "message_clip": (0.0, -1, float("nan"), "x"),
    "seeds": ((), (-1,), (0, 0), (2**63,), "x", None, (0.5,)),
    "algorithm_options": (None, 5, "ab", {"lrr": 1}, {"lr": "x"}, {"lr": -1.0}, {"batch_size": 0}),
    "model_options": (None, 5, "ab", {"widht": 1}, {"width": "x"}, {"width": 0}, {"width": -1}),
}
WORDS = {"dataset": "dataset|data set", "validation_size": "validation_size|share"}  # where it is not the name
COMMANDS = {  # a command line, and what its error says
    "run": "usage",
    "nonsense": "unknown command",
    "run fedeq/tab99": "similar",
    "run zzz": "no notebook",
    "run tab03 --jobs 0": "--jobs",
    "run tab03 --jobs x": "--jobs",
    "run tab03 --preset big": "preset",
    "run fedeq/fig04 --preset quick -p preset paper": "differ",
    "run fedeq/fig04 --dask nowhere.invalid:1": "no Dask scheduler",
    "compute fedeq/fig04 -p dataset roles": "natural",
    "compute fedeq/fig04 -p width 0": "width",
    "compute fedeq/fig04 -p seeds 9223372036854775808,": "seeds",
    "compute fedeq/fig04 -p num_clients 0": "num_clients",
    "compute fedeq/fig04 -p paper x": "parameter",
    "compute fedeq/fig04 -p preset big": "preset",
    "compute fedeq/fig04 --clients-at-once 0": "--clients-at-once",
    "compute fedeq/fig04 --trajectories-at-once -1": "--trajectories-at-once",
    "data fetch": "name of the data set",
    "data fetch cifar": "cifar",
    "data status cifar": "cifar",
    "report --nonsense": "usage",
}


def at_the_command_line(line: str) -> Callable[[], None]:
    """The command in this process; its refusal as an error."""

    def attempt() -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                code = cli.main(line.split())
            except SystemExit as stopped:  # argparse's
                code = stopped.code
        if code:
            raise FedlabError(said.getvalue())

    return attempt


def bad_inputs(pattern: str = "*") -> Iterator[Outcome]:
    """Values that cannot be, through Python, the command line and the parameters of every notebook."""
    assert SETTINGS.keys() <= rules_of(Settings).keys()
    for name, values in SETTINGS.items():
        for value in values:

            def make(name=name, value=value) -> None:
                runner.build_problem(Settings(**{name: value}))

            options = next(iter(value), "") if isinstance(value, dict) else ""
            yield ends(f"Settings({name}={value!r})", make, WORDS.get(name, options or name))
    for line, words in COMMANDS.items():
        yield ends(f"fedlab {line}", at_the_command_line(line), words)
    for item in presets.items(pattern, presets.ALL):
        if item.notebook.exists():
            for name, (hint, _) in notebooks.parameters(item.notebook).items():
                for value in ("3" if hint is dict else "{}", *(["x=1"] if hint is not str else [])):
                    line = f"run {item} -p {name} {value}"
                    yield ends(f"fedlab {line}", at_the_command_line(line), WORDS.get(name, name))


# --- the table --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def elsewhere() -> Iterator[Path]:
    """A folder for all that is written."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ.update({name: str(Path(scratch) / name.lower()) for name in ENVIRONMENT})
        try:
            yield Path(scratch)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def table(parts: dict[str, Iterator[Outcome]]) -> int:
    """Run the parts and print a line each, with what is not clear below; returns how many cases that is."""
    print(f"{'attack':<28}{'tries':>8}{'clear':>8}{'not':>6}", flush=True)
    worst = 0
    for name, outcomes in parts.items():
        found = list(outcomes)
        wrong = [outcome for outcome in found if outcome.wrong]
        tries, bad = sum(outcome.tries for outcome in found), len(wrong)
        print(f"{name:<28}{tries:>8,}{tries - bad:>8,}{bad:>6}", flush=True)
        print(*(f"    {outcome.case}: {outcome.wrong}" for outcome in wrong), sep="\n", end="\n" if wrong else "")
        worst += bad
    return worst


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"kills": 100, "mutations": 10_000, "full_disks": 12, "two_writers": 8, "seed": 0}
    for name, size in sizes.items():
        about.add_argument(f"--{name.replace('_', '-')}", type=int, default=size, metavar="N")
    asked = about.parse_args()
    with elsewhere() as folder:
        parts = {"bad inputs": bad_inputs(), "altered files": mutations(asked.mutations, asked.seed, folder)}
        parts["full disks"] = full_disks(asked.full_disks, asked.seed, folder / "full")
        parts["two writers"] = two_writers(asked.two_writers, asked.seed, folder / "two")
        parts["kills"] = kills(asked.kills, asked.seed, folder / "killed")
        return 1 if table(parts) else 0


if __name__ == "__main__":
    sys.exit(main())
