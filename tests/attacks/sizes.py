"""Section I: what no machine can hold, and several processes that compute together."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attacks.cases import SILENT, Outcome, Said, ends, holds, judged, side_by_side, units
from fedlab_lite.data import federated
from fedlab_lite.engine import make_graph
from fedlab_lite.runs import Settings, run
from fedlab_lite.util import cache_dir, jax_setup

DIGITS = {"dataset": "digits", "partition": "iid", "num_clients": 4, "train_size": 80, "num_rounds": 1}
TOO_LARGE: dict[str, dict[str, Any]] = {
    "a width of 10^8": {**DIGITS, "model_options": {"width": 10**8}},
    "a width of 10^9": {**DIGITS, "model_options": {"width": 10**9}},
    "20,000 clients of Ditto": {**DIGITS, "num_clients": 20_000, "train_size": 40_000, "algorithm": "ditto"},
    "2^31 - 1 rows": {**DIGITS, "train_size": 2**31 - 1},
    "2^31 - 1 clients": {**DIGITS, "num_clients": 2**31 - 1, "train_size": None},
    "a million clients": {**DIGITS, "num_clients": 10**6, "train_size": None},
    "10^8 writers of glyphs": {"dataset": "glyphs", "num_clients": 10**8},
    "10^9 roles": {"dataset": "roles", "num_clients": 10**9, "model": "transformer4"},
    "10^8 windows of motion": {**DIGITS, "dataset": "motion", "train_size": 10**8},
    "10^9 textures to test with": {**DIGITS, "dataset": "textures", "test_size": 10**9},
}


def too_large(options: dict[str, Any]) -> None:
    """It is refused soon, and before the memory is taken."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    try:
        run(Settings(**options))
    finally:
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
        assert taken < 2.5, f"{taken:.1f} GB were taken first"
        assert time.monotonic() - began < 30, f"it took {time.monotonic() - began:.0f} s to say so"


# --- several processes ------------------------------------------------------------------------------------------------

ADDRESSES = ("host", "", ":", ":1234", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1")
ADDRESSES += ("[::1", "a b:1", "http://127.0.0.1:1", "127.0.0.1:1:2", "\0:1", "é:9")
JOIN = """
import sys
import fedlab_lite as fl
from fedlab_lite.util import FedlabError
from fedlab_lite.runs import Settings, run
digits = {"dataset": "digits", "partition": "iid", "num_clients": 4, "train_size": 80, "num_rounds": 40}
try:
    print(fl.setup(devices=1), flush=True)
    settings = Settings(**digits, model_options={"width": 8}, seeds=(0, 1))
    run(settings, checkpoint_seconds=0, trajectories_at_once=int(sys.argv[1]))
except FedlabError as error:
    sys.exit(f"error: {error}")
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def member(folder: Path, number: int, port: int, *arguments: str, **environment: str) -> Any:
    """A process of two, whose streams go to files."""
    group = {"FEDLAB_COORDINATOR": f"127.0.0.1:{port}", "FEDLAB_NUM_PROCESSES": "2", "FEDLAB_PROCESS_ID": str(number)}
    paths = {"FEDLAB_RUNS": str(folder / "runs"), "CI": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / f"log{number}").open("w") as log:
        command = [sys.executable, "-c", JOIN, *(arguments or ("1",))]
        return subprocess.Popen(command, env=os.environ | group | paths | environment, stdout=log, stderr=log)


def said_by(folder: Path, started: Any, number: int, seconds: int) -> Said:
    try:
        code = started.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        started.kill()
        code = None
        started.wait()
    return Said(code, "", (folder / f"log{number}").read_text(errors="backslashreplace"))


def listening(folder: Path) -> Outcome:
    """The coordinator listens on its own address alone."""
    found_at: set[str] = set()
    (folder := folder / "listening").mkdir()
    port = free_port()
    started = member(folder, 0, port)
    try:
        import psutil

        until = time.monotonic() + 60
        while not found_at and time.monotonic() < until and started.poll() is None:
            time.sleep(0.2)
            connections = psutil.Process(started.pid).net_connections("tcp")
            there = [each.laddr for each in connections if each.status == "LISTEN"]
            found_at = {address.ip.removeprefix("::ffff:") for address in there if address.port == port}
    finally:
        started.kill()
        started.wait()
    wrong = "" if found_at == {"127.0.0.1"} else f"it listens on {found_at}"
    return Outcome("where the coordinator listens", wrong, SILENT)


def one_is_killed(folder: Path) -> Outcome:
    """SIGKILL of one of two processes ends the other with a line that says how to go on."""
    (folder := folder / "killed").mkdir()
    port = free_port()
    pair = [member(folder, k, port) for k in range(2)]
    until = time.monotonic() + 90
    while not list(folder.glob("runs/*.ckpt")) and time.monotonic() < until and None in [each.poll() for each in pair]:
        time.sleep(0.05)
    pair[1].send_signal(signal.SIGKILL)
    said = said_by(folder, pair[0], 0, 130)
    pair[1].wait()
    return judged("one of two processes is killed", said, "continues|error|interrupted", (0, 1, 2))


def nobody_else(folder: Path) -> Outcome:
    """A process that waits for others in vain ends at a deadline that can be set, with one line."""
    (folder := folder / "alone").mkdir()
    started = member(folder, 0, free_port(), FEDLAB_JOIN_SECONDS="5")
    return judged("nobody else comes", said_by(folder, started, 0, 60), "error", (1, 2))


def no_coordinator(folder: Path) -> Outcome:
    (folder := folder / "nocoordinator").mkdir()
    started = member(folder, 1, free_port(), FEDLAB_JOIN_SECONDS="5")
    return judged("no coordinator answers", said_by(folder, started, 1, 60), "error", (1, 2))


def different(folder: Path) -> Outcome:
    """Two processes that batch differently are refused, and do not wait for each other."""
    (folder := folder / "different").mkdir()
    port = free_port()
    pair = [member(folder, k, port, str(k + 1)) for k in range(2)]
    said = [said_by(folder, each, k, 90) for k, each in enumerate(pair)]
    return judged("different trajectories_at_once", said[0], "error", (0, 1, 2))


# --- the cache of embedded data ---------------------------------------------------------------------------------------


def forged(folder: Path) -> None:
    """A file of embedded data with other labels is not read as embedded data."""
    data = federated("digits", partition="iid", num_clients=2, train_size=40)
    (file,) = (cache_dir() / "embedded").glob("digits*train40-*.npz")
    with np.load(file) as archive:
        arrays = dict(archive)
    arrays["y_train"] = np.zeros_like(arrays["y_train"])
    np.savez(file, **arrays)
    again = federated("digits", partition="iid", num_clients=2, train_size=40)
    assert again.fingerprint() == data.fingerprint(), f"forged labels are {again.source!r}"


TESTS = ("tests/runs/test_memory.py", "tests/engine/test_groups.py")


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    for address in ADDRESSES:
        yield ends(f"coordinator {address!r}", partial(jax_setup._group, address, 2, 1), "address")
    for what, options in TOO_LARGE.items() if share == 1 else ():
        yield ends(what, partial(too_large, options), "memory")
    for kind in ("ring", "complete", "random") if share == 1 else ("ring",):
        yield ends(f"a {kind} of a million", partial(make_graph, kind, 10**6), "memory")
    yield holds("forged embedded data", partial(forged, folder))
    if share == 1:
        together: dict[str, Callable[[], Outcome]] = {
            each.__name__: partial(each, folder)
            for each in (listening, nobody_else, no_coordinator, different, one_is_killed)
        }
        yield from side_by_side(together)
        yield from units(*TESTS)
