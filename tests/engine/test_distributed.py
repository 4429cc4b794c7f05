"""Two processes of `jax.distributed` on loopback: one's history, resumed after both are killed; one writes."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedlab_lite.runs import store

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import fedlab_lite
fedlab_lite.setup(devices=1)
from fedlab_lite.util import InputError
from fedlab_lite.runs import Settings, run
digits = {"dataset": "digits", "partition": "dirichlet", "num_clients": 6, "train_size": 120, "cohort_size": 4}
small = {"model_options": {"width": 16, "depth": 1, "features": 8}, "algorithm_options": {"epochs": 1}}
settings = Settings(algorithm="fedper", num_rounds=int(sys.argv[1]), **small, **digits)
try:
    run(settings, checkpoint_seconds=0)
except InputError as error:
    sys.exit(f"refused: {error}")
"""


def start(folder: Path, rounds: int, process: int | None = None, port: int = 0, runs: Path | None = None):
    """A process that trains; alone, or the `process`-th of two that compute together."""
    environment = os.environ | {"FEDLAB_RUNS": str(runs or folder / "runs"), "CI": "1"}
    if process is not None:
        group = {"COORDINATOR": f"127.0.0.1:{port}", "NUM_PROCESSES": "2", "PROCESS_ID": str(process)}
        environment |= {f"FEDLAB_{name}": value for name, value in group.items()}
    with (folder / f"log{process}").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rounds)], env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pair(folder: Path, rounds=(12, 12), runs=(None, None)):
    folder.mkdir(exist_ok=True)
    port = free_port()
    return [start(folder, rounds[i], i, port, runs[i]) for i in range(2)]


def finish(processes) -> list[int]:
    return [process.wait(timeout=300) for process in processes]


def only_run(folder: Path):
    (file,) = folder.glob("*.npz")
    arrays, meta = store.load_arrays(file)
    return arrays, meta


def test_two_processes_compute_what_one_does(tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    assert start(alone, 12).wait(timeout=300) == 0

    killed = pair(tmp_path / "both")
    runs = tmp_path / "both" / "runs"
    while not list(runs.glob("*.ckpt")):
        assert [process.poll() for process in killed] == [None, None], (tmp_path / "both" / "log0").read_text()
        time.sleep(0.01)
    for process in killed:
        process.kill()
    finish(killed)
    assert not list(runs.glob("*.npz"))
    assert finish(pair(tmp_path / "both")) == [0, 0], (tmp_path / "both" / "log1").read_text()
    assert not list(runs.glob("*.ckpt"))

    (want, want_meta), (got, meta) = only_run(alone / "runs"), only_run(runs)
    assert want.keys() == got.keys()
    for (
        name,
        values,
    ) in want.items():  # a last digit may differ, as between numbers of devices
        np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert (want_meta["device"], meta["device"]) == ("1 x cpu", "2 x cpu")

    apart = tmp_path / "apart" / "first", tmp_path / "apart" / "second"
    (tmp_path / "apart").mkdir()
    assert finish(pair(tmp_path / "apart", (1, 1), apart)) == [0, 0]
    assert len(list(apart[0].iterdir())) == 1
    assert not apart[1].exists()  # the second process wrote nothing


def test_processes_with_different_settings_are_refused(tmp_path):
    folder = tmp_path / "different"
    assert finish(pair(folder, (2, 3))) == [1, 1]
    for process in range(2):
        said = (folder / f"log{process}").read_text()
        assert "refused" in said
        assert "start all processes with the same command, settings, data and version" in said
