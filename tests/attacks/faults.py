"""Kills, full disks, two writers, damaged files: the result is that of an undisturbed run, or one clear error."""

import contextlib
import itertools
import json
import math
import random
import resource
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from helpers import history, recorded
from kill_and_resume import JOBS, finish, kill_and_resume, left_by, start

from attacks.cases import SILENT, TRACEBACK, Outcome, ends
from fedlab_lite.data import load
from fedlab_lite.papers import presets, results
from fedlab_lite.runs import runner, store
from fedlab_lite.util import files, jax_setup

# --- kills, full disks, two writers -----------------------------------------------------------------------------------


def kills(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    """40 SIGKILLs at random moments of runs, sweeps, searches and figures, then resumed."""
    each = math.ceil(40 * share / len(JOBS))
    with ThreadPoolExecutor(2) as pool:
        jobs = {job: pool.submit(kill_and_resume, each, folder / job, seed, job) for job in JOBS}
        for job, result in jobs.items():
            found = result.result()
            clear = found["same"] and not found["checkpoints left"]
            yield Outcome(f"kills of {job}", "" if clear else str(found), SILENT, each)


def full_disks(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    """In 12 tries no file may grow beyond a limit, as where the disk is full; the same command does it later."""
    finish(start(folder / "calm", 40))
    calm = left_by(folder / "calm")
    for limit in random.Random(seed).sample(range(100, 60_000), math.ceil(12 * share)):

        def lower(limit=limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        process = start(folder / f"full{limit}", 40, stderr=-1, preexec_fn=lower)
        _, said = process.communicate()
        clear = process.returncode == 0 or "OutputError: cannot write" in said.splitlines()[-1]
        finish(start(folder / f"full{limit}", 40))
        same = left_by(folder / f"full{limit}") == calm
        kind = TRACEBACK if same else SILENT
        yield Outcome(f"files of {limit} bytes at most", "" if clear and same else f"same: {same}; {said[-300:]}", kind)


def two_writers(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    """Eight times two processes that do the same at the same time in the same place."""
    for job in itertools.islice(itertools.cycle(JOBS), math.ceil(8 * share)):
        with contextlib.suppress(FileExistsError):
            finish(start(folder / f"{job} alone", 60, job))
        pair = [start(folder / f"{job} shared", 60, job) for _ in range(2)]
        codes = [process.communicate() and process.returncode for process in pair]
        same = left_by(folder / f"{job} shared") == left_by(folder / f"{job} alone")
        clear, kind = codes == [0, 0] and same, TRACEBACK if any(codes) else SILENT
        yield Outcome(f"two writers of {job}", "" if clear else f"{codes}, same: {same}", kind)


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
    part = runner.replace(one, seeds=(0,), diverged=(False,), metrics={"accuracy": one.metrics["accuracy"][:1]})
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


def mutations(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    """10,000 alterations of files of all kinds: the same content, or an error; never another number, or a traceback."""
    rng, kinds = random.Random(seed), victims(folder)
    tries = math.ceil(10_000 * share / len(kinds))
    for what, (file, read) in kinds.items():
        whole, expected, wrong = file.read_bytes(), repr(read()), []
        for _ in range(tries):
            file.write_bytes(mutated(whole, rng))
            seen = []
            outcome = ends(what, lambda read=read, seen=seen: seen.append(repr(read())), may_pass=True)
            healed = what == "a compiled program" and seen == ["'compiled again'"]
            if outcome.wrong:
                wrong.append(outcome)
            elif seen and seen != [expected] and what not in UNCHECKED and not healed:
                wrong.append(Outcome(what, "another content is read without a word", SILENT))
        file.write_bytes(whole)
        yield from (outcome._replace(case=f"{what} altered") for outcome in wrong)
        yield Outcome(f"{what} altered", tries=tries - len(wrong))
