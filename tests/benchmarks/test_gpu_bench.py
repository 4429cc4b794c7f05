"""The benchmark for a GPU, on a CPU: its contestants compute the same round, and its table says what is missing."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gpu
import jax
import numpy as np
import pytest
from gpu_table import Contest, Table, TooLate, largest_gap, seconds_of

LARGEST_GAP = 1e-4


def small(name):
    (found,) = (gpu.shrunk(workload) for workload in gpu.WORKLOADS if workload.model == name)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's deprecations are its own
@pytest.mark.parametrize("name", ["cnn", "resnet20", "deq_resnet_s"])
def test_a_round_in_pytorch_is_our_round(monkeypatch, name):
    """PyTorch's group norm on a CPU loses three digits where the mean is large, so it is computed in double here.

    The solver takes all of its iterations, since rounding decides whether a residual is just below the tolerance. Its
    steps are small: at 0.01 a rounding error of this network grows a hundredfold in two steps.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import gpu_networks
    import gpu_torch

    def exact(p, layer, z, groups=8):
        scale, offset = (p[f"{layer}.{part}"].double() for part in ("scale", "offset"))
        return torch.nn.functional.group_norm(z.double(), groups, scale, offset).float()

    monkeypatch.setattr(gpu_networks, "norm", exact)
    monkeypatch.setattr(gpu_networks, "TOLERANCE", 0.0)
    gpu_torch.set_precision("float32")
    workload = small(name)
    if workload.equilibrium:
        workload = replace(workload, lr=1e-3, options=(*workload.options, ("tol", 0.0)))
    program, arguments = gpu.lowered(workload)
    ours = gpu.flat(jax.tree.map(np.asarray, program.compile()(*arguments)))
    before = workload.start()[0]
    for mode in ("eager", "vmap", "compiled"):
        theirs = gpu_torch.arrays(gpu_torch.Round(workload, mode)())
        assert largest_gap(theirs, ours) < LARGEST_GAP
        for part in theirs:  # and it is a round, not its start
            moved = largest_gap({part: theirs[part]}, before)
            assert largest_gap({part: theirs[part]}, ours) < 0.02 * moved


def test_rows_come_in_the_order_of_local_training():
    """A client that sums what it sees, each row times the number of its step, has seen the rows in this order."""
    from fedlab_lite.engine import ClientData, local_train

    workload = replace(small("cnn"), rows=30, epochs=2)
    keys = jax.random.split(jax.random.key(3), 2)
    rows, step = np.arange(30.0, dtype=np.float32), 0
    for key, orders in zip(keys, workload.orders(keys, 2), strict=True):
        seen = np.zeros(())
        for step, batch in enumerate(orders.reshape(-1, workload.batch_size), 1):
            seen = seen + step * rows[batch].sum()

        def loss(params, batch):  # with a step of -1: sum += step * rows, step += 1
            return jax.lax.stop_gradient(params["step"]) * params["sum"] * batch.x.sum() + params["step"], None

        start = {"sum": np.float32(0), "step": np.float32(1)}
        data = ClientData(rows, np.zeros(30, int), np.int32(30))
        found = local_train(loss, start, data, key, gpu_sgd(), batch_size=workload.batch_size, epochs=2)
        assert found["step"] == step + 1
        np.testing.assert_allclose(found["sum"], seen, rtol=1e-6)


def gpu_sgd():
    import optax

    return optax.sgd(-1.0)


ABOUT = {"device": "abacus", "versions": {"jax": "1"}, "precision": "float32", "said": "So."}
STATE = {"params": {"head.bias": np.zeros(3)}}


def fails():
    raise RuntimeError("out of memory\nsecond line")


def fine(note=""):
    return Contest(lambda: STATE, dict, note)


def test_the_table_has_what_failed_and_what_was_too_late(tmp_path):
    def too_late():
        raise TooLate

    table = Table(tmp_path, ABOUT, deadline=float("inf"), repeats=2)
    table.ceiling("copy", lambda: 1.0)
    table.ceiling("product", fails)
    wanted = table.add("net", gpu.OURS, 4, lambda: fine("a note"), None)
    table.add("net", f"{gpu.OURS}, other", 4, fine, wanted)
    table.add("net", "fails", 4, fails, wanted)
    table.add("net", "late", 4, too_late, wanted)
    table.deadline = 0.0
    table.add("net", "never", 4, fine, wanted)
    text = (tmp_path / "gpu.md").read_text()
    ours, other, failed, late, never = text.splitlines()[-5:]
    assert "a note" in ours
    assert "| 1.00 |" in ours
    assert "0e+00" in other
    assert "failed: RuntimeError: out of memory |" in failed
    assert "not compiled in time" in late
    assert "no time left" in never
    assert "float32. So." in text
    assert "| product | failed: RuntimeError: out of memory |" in text
    assert len(json.loads((tmp_path / "gpu.json").read_text())["rows"][0]["all_ms"]) == 2


@pytest.mark.parametrize("broken", ["lowered", "our_contest"])
def test_where_our_row_fails_the_others_stay(monkeypatch, tmp_path, broken):
    """Nothing to compare with is no failure of the next row, and a failure to compile ends nothing."""
    right = getattr(gpu, broken)
    fallen = []

    def breaks_once(*args):
        if not fallen:
            fallen.append(broken)
            fails()
        return right(*args)

    monkeypatch.setattr(gpu, broken, breaks_once)
    monkeypatch.setattr(gpu, "torch_version", lambda: None)
    table = Table(tmp_path, ABOUT, time.monotonic() + 600, repeats=1)
    gpu.compete(table, (small("cnn"),), ("im2col", "grouped"))
    first, second = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert first["note"] == "failed: RuntimeError: out of memory"
    assert second["ms"] > 0
    assert second["gap"] is None


HANGS = """
import sys, time, gpu
def hang(table, *_):
    table.deadline = float("inf")
    table.add("net", "hangs", 1, lambda: time.sleep(100), None)
gpu.compete, gpu.ceilings = hang, lambda quick: {}
gpu.main(["--minutes", "0.01", "--out", sys.argv[1]])
"""


def test_a_contest_that_hangs_ends_the_process_and_is_in_the_table(tmp_path):
    paths = [*map(str, (Path(__file__).parent, Path(__file__).parents[2])), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "| net | hangs | – | – | – | – | did not end in time |" in (tmp_path / "gpu.md").read_text()


def test_ceilings_and_the_median():
    found = {name: measure() for name, measure in gpu.ceilings(quick=True).items()}
    assert list(found) == ["copy, GB/s", *(f"product in {name}, TFLOP/s" for name in ("float32", "tf32", "bfloat16"))]
    assert min(found.values()) > 0
    assert len(seconds_of(lambda: None, 5, until=0.0)) == 1
