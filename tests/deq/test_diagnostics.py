"""The report on a layer, with numbers that are known: one entry per sample, z <- tanh(a z + x)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.deq import GRADIENTS, SOLVERS, report
from fedlab_lite.util import InputError


@pytest.fixture(scope="module")
def found():
    return report(lambda a, x, z: a * z + x, 0.4, jnp.ones((2, 1)), jnp.zeros((2, 1)), jax.random.key(0))


def test_a_row_for_each_solver_and_gradient(found):
    assert [row.solver for row in found.solvers] == list(SOLVERS) == list(found.traces)
    assert [row.gradient for row in found.gradients] == list(GRADIENTS)
    assert all(row.milliseconds > 0 for row in (*found.solvers, *found.gradients))
    assert all(row.kilobytes >= 0 for row in found.gradients)


def test_what_is_known_comes_out(found):
    np.testing.assert_allclose(found.spectral_radius, 0.4, rtol=1e-5)
    assert found.exact_residual < 1e-5
    residuals = {row.solver: row.residual for row in found.solvers}
    assert max(residuals.values()) < 1e-4
    steps = {row.solver: row.iterations for row in found.solvers}
    assert steps["fixed_point"] == 11  # 0.4^9 is above 1e-4 of z* = 5/3, 0.4^10 is below
    assert int(np.isfinite(found.traces["fixed_point"]).sum()) == 11
    errors = {row.gradient: row.error for row in found.gradients}
    # z* = x / (1 - a), slope x / (1 - a)^2; one step has x / (1 - a), 40 % less; five terms lack 0.4^5 of it
    assert errors["one_step"] == pytest.approx(0.4, abs=1e-3)
    assert (errors["neumann"], errors["phantom"]) == pytest.approx((0.4**5, 0.4**5), abs=1e-3)
    assert max(errors[name] for name in ("implicit", "shine", "unrolled")) < 1e-3
    assert errors["reversible"] < 5e-2


def test_a_trace_goes_on_until_half_of_the_samples_have_stopped():
    """Three linear samples: the fastest stops early, and the median is that of the middle one."""
    slopes = jnp.array([[0.1], [0.5], [0.8]])
    layer, ones = lambda a, x, z: a * slopes * z + x, jnp.ones((3, 1))
    found = report(layer, 1.0, ones, 0 * ones, jax.random.key(0), max_iter=60, gradients=["one_step"])
    trace = found.traces["fixed_point"]
    finite = int(np.isfinite(trace).sum())
    np.testing.assert_allclose(trace[:finite], 0.5 ** np.arange(finite), rtol=1e-2)
    assert 10 < finite < 20
    assert [row.gradient for row in found.gradients] == ["one_step"]


def test_an_unknown_gradient_is_an_error():
    with pytest.raises(InputError, match="one_step"):
        report(
            lambda a, x, z: a * z + x, 0.4, jnp.ones((2, 1)), jnp.zeros((2, 1)), jax.random.key(0), gradients=["one"]
        )
