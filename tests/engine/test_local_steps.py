"""Steps of local training by hand: momentum, decay, clipping; and the types of params."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import KEY, blobs, cohort_of, init, quadratic_problem, step

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.engine import Plan, train, training
from fedlab_lite.nn import Model

# --- optimizers by hand -----------------------------------------------------------------------------------------------


def after_one_round(start=0.0, rounds=1, **options):
    """theta, which equals w, of FedAvg on two clients that pull theta + w to 1 (three rows) and 5 (one row)."""
    problem = quadratic_problem([1.0, 5.0], [3, 1], theta=start, w=start)
    algorithm = make_algorithm("fedavg", batch_size=4, **options)
    state, _ = training.advance(problem, [(algorithm, 0)], Plan(rounds, eval_every=rounds))
    theta, w = state["params"]["representation"]["theta"], state["params"]["head"]["w"]
    assert float(theta) == pytest.approx(float(w))
    return float(theta)


def test_momentum_by_hand():
    """y1 = 0.25 y; its gradient is -0.5 y, the ball's speed -y again: y2 = 0.5 y, and the weighted mean of y is 2."""
    assert after_one_round(lr=0.25, epochs=2, momentum=0.5) == pytest.approx(1.0)
    assert after_one_round(lr=0.25, epochs=2) == pytest.approx(0.75)  # y2 = 0.375 y


def test_momentum_starts_each_round_from_rest():
    """Round 2 at 0.5: clients step by 0.25 (y - 1), once each."""
    assert after_one_round(lr=0.25, epochs=1, momentum=0.5, rounds=2) == pytest.approx(0.5 + 0.25 * (2 - 1))


def test_weight_decay_by_hand():
    """At 1: residuals 1 and -3, with 0.2 times the params 1.2 and -2.8: 0.4 and 2.4."""
    assert after_one_round(1.0, lr=0.5, epochs=1, weight_decay=0.2) == pytest.approx(0.75 * 0.4 + 0.25 * 2.4)


def test_clip_by_hand():
    """Gradients (-1, -1) and (-5, -5) are both scaled to length 0.5; a clip of 2 leaves the first alone."""
    assert after_one_round(lr=0.5, epochs=1, clip=0.5) == pytest.approx(0.25 / 2**0.5)
    assert after_one_round(lr=0.5, epochs=1, clip=2.0) == pytest.approx(0.75 * 0.5 + 0.25 * 1 / 2**0.5)


def test_what_is_clipped_is_the_loss_without_decay():
    """Decay is added to the clipped gradient, as optax' chain has it: at 1, (1, 1) and (-3, -3) become 0.1 / sqrt 2."""
    want = 0.75 * (1 - 0.5 * (0.1 / 2**0.5 + 0.2)) + 0.25 * (1 + 0.5 * (0.1 / 2**0.5 - 0.2))
    assert after_one_round(1.0, lr=0.5, epochs=1, clip=0.1, weight_decay=0.2) == pytest.approx(want)


def test_lr_decay_by_hand():
    """Round 1 at 0.25: 0.25 * 2 = 0.5; round 2 at 0.125: 0.5 + 0.125 (2 - 1)."""
    assert after_one_round(lr=0.25, epochs=1, lr_decay=0.5, rounds=2) == pytest.approx(0.625)
    assert after_one_round(lr=0.25, epochs=1, lr_decay=0.0, rounds=3) == pytest.approx(0.5)


def test_lr_decay_is_for_step_sizes():
    decayed = make_algorithm("fedeq", lr=0.4, rho=2.0, lr_decay=0.5).of_round(jnp.int32(2))
    assert (float(decayed.lr), float(decayed.rho)) == pytest.approx((0.1, 2.0))  # rho is a penalty
    decayed = make_algorithm("fedf_admm", lr=0.4, rho=2.0, nu=0.1, epochs=3, lr_decay=0.5).of_round(jnp.int32(1))
    assert (float(decayed.lr), float(decayed.rho)) == pytest.approx((0.2, 1.0))  # here it is a step size
    assert (float(decayed.nu), int(decayed.epochs)) == (pytest.approx(0.1), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fedrep", "fedeq", "ditto", "fedbabu", "fedpac", "fedreco", "fedrod", "deprl", "dfedadmm", "cmfd"]
)
def test_each_kind_of_local_training_uses_its_optimizer(name):
    """A clip near 0 stops whatever a client trains by gradients of the loss, so nothing moves but by decay."""
    problem = blobs(sizes=[5, 5], width=4, depth=1, features=3)
    algorithm = make_algorithm(name, lr=0.5, clip=1e-6)
    state = init(algorithm, problem)
    after = step(algorithm, problem, state, cohort_of(algorithm, problem, [0, 1]))
    for part in ("theta", "thetas", "heads", "params", "client_params", "personal"):
        if part in state:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), after[part], state[part])


# --- types of params --------------------------------------------------------------------------------------------------


class Half(nnx.Module):
    """A layer and a head whose params are bfloat16."""

    def __init__(self, input_shape, *, rngs):
        self.layer = nnx.Linear(input_shape[0], 8, param_dtype=jnp.bfloat16, rngs=rngs)

    def make_head(self, num_classes, *, rngs):
        return nnx.Linear(8, num_classes, param_dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.layer(x.astype(jnp.bfloat16)))


EXTRAS = {"momentum": 0.5, "weight_decay": 0.1, "clip": 1.0, "lr_decay": 0.9}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in ALGORITHMS), ("fedeq", {"server": "argmin"})])
def test_bfloat16_params_stay_what_they_are(name, options):
    if name == "fedcr":
        pytest.skip("it needs a network with Gaussian features")
    problem = replace(blobs(), model=Model.of(Half, (6,), 3))
    algorithm = make_algorithm(name, **EXTRAS, **options)
    algorithm = jax.tree.map(jnp.asarray, algorithm)  # numbers are data of a compiled round
    state = jax.eval_shape(algorithm.init, problem, KEY)
    models = jax.eval_shape(algorithm.models, problem, state, KEY)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(models[0]))
    after = jax.eval_shape(step, algorithm, problem, state, cohort_of(algorithm, problem, [0, 2, 3]), KEY)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), after) == jax.tree.map(lambda a: (a.shape, a.dtype), state)


def test_bfloat16_params_learn():
    problem = replace(blobs(), model=Model.of(Half, (6,), 3))
    history, _ = train(problem, make_algorithm("fedavg", lr=0.1, **EXTRAS), num_rounds=4, eval_every=4)
    assert history.metrics["loss"][0, -1] < 0.8 * history.metrics["loss"][0, 0]
    assert history.message_bytes["up"] == 2 * sum(history.num_params.values())
