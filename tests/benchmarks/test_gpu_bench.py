"""The benchmark for a GPU, on a CPU: its contestants compute the same round, and its table says what is missing."""

from dataclasses import replace

import gpu
import jax
import numpy as np
import pytest

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
        assert gpu.largest_gap(theirs, ours) < LARGEST_GAP
        for part in theirs:  # and it is a round, not its start
            moved = gpu.largest_gap({part: theirs[part]}, before)
            assert gpu.largest_gap({part: theirs[part]}, ours) < 0.02 * moved


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


def test_the_table_has_what_failed_and_what_was_too_late():
    table, workload = gpu.Table(deadline=float("inf"), repeats=2), small("cnn")
    state = {"params": {"head": {"bias": np.zeros(3)}}}

    def fails():
        raise RuntimeError("out of memory\nsecond line")

    def too_late():
        raise gpu.TooLate

    wanted = table.add(workload, gpu.OURS, lambda: (lambda: state, "a note"), None)
    table.add(workload, f"{gpu.OURS}, other", lambda: (lambda: state, ""), wanted)
    table.add(workload, "fails", fails, wanted)
    table.add(workload, "late", too_late, wanted)
    table.deadline = 0.0
    table.add(workload, "never", too_late, wanted)
    about = {
        "device": "abacus",
        "versions": {"jax": "1"},
        "precision": "float32",
        "ceilings": {"copy": 1.0},
        "said": "So.",
    }
    text = table.markdown(about)
    ours, other, failed, late, never = text.splitlines()[-5:]
    assert "a note" in ours
    assert "| 1.00 |" in ours
    assert "0e+00" in other
    assert "failed: RuntimeError: out of memory |" in failed
    assert "not compiled in time" in late
    assert "no time left" in never
    assert "float32. So." in text


def test_ceilings_and_the_median():
    assert set(gpu.ceilings(quick=True)) == {
        "copy, GB/s",
        *(f"product in {precision}, TFLOP/s" for precision in ("float32", "tf32", "bfloat16")),
    }
    assert gpu.median_seconds(lambda: None, 5, until=0.0) < 1
