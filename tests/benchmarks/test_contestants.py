"""What the benchmarks measure of ours still runs and does what it should, on small shapes and without a clock."""

import client_steps
import equilibrium_layer
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.nn import count_params


def test_rounds_and_bare_steps_train():
    (small,) = (client_steps.shrunk(workload) for workload in client_steps.WORKLOADS if workload.model == "mlp")
    before = small.network().init(jax.random.key(0))
    for params in (client_steps.fedlab_round(small)()["params"], client_steps.bare_step(small)()):
        moved = jax.tree.map(lambda new, old: jnp.abs(new - old).max(), params, before)
        assert 0 < max(jax.tree.leaves(moved)) < 1


@pytest.mark.parametrize("workload", client_steps.WORKLOADS, ids=lambda workload: workload.model)
def test_a_network_in_plain_flax_has_as_many_parameters(workload):
    models = workload.network(), workload.network(plain=True)
    ours, plain = (count_params(jax.eval_shape(model.init, jax.random.key(0))) for model in models)
    assert ours == plain


def test_equilibrium_gradients_are_the_exact_ones():
    workload = equilibrium_layer.Workload("gaussian", 0.5, "implicit", width=8, batch=4)
    result = equilibrium_layer.fedlab(workload)()
    for found, exact in zip(result.gradients, workload.gradients, strict=True):
        np.testing.assert_allclose(found, exact, atol=1e-3 * np.abs(exact).max())
    assert equilibrium_layer.evaluations_alone(workload)().iterations == result.iterations
