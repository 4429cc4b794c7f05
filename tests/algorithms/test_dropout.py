"""Dropout is on wherever an algorithm trains a body, with masks of their own for body and heads; off in judging."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import KEY, blobs, init, largest_gap, run_rounds

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.algorithms.fedrod import FedRoD
from fedlab_lite.engine import Batch, ClientData, Problem
from fedlab_lite.nn import Model
from fedlab_lite.nn.gaussian import LEAST, Encoder, Gaussian
from fedlab_lite.nn.layers import dropout


class Dropping(nnx.Module):
    """A layer whose outputs are dropped in training."""

    def __init__(self, input_shape, *, dropout: float = 0.0, rngs):
        self.layer, self.features, self.rate = nnx.Linear(input_shape[0], 8, rngs=rngs), 8, dropout

    def __call__(self, x, *, key=None):
        return dropout(nnx.relu(self.layer(x.astype(jnp.float32))), self.rate, key)


class DroppingEncoder(Encoder):
    """The same as a Gaussian encoder, as FedCR needs it."""

    def __init__(self, input_shape, *, dropout: float = 0.0, rngs):
        super().__init__(Dropping(input_shape, dropout=dropout, rngs=rngs), 4, rngs=rngs)

    def __call__(self, x, *, key=None):
        mean, raw = jnp.split(self.gaussian(self.body(x, key=key)), 2, axis=-1)
        return Gaussian(mean, jnp.maximum(nnx.softplus(raw), LEAST))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_its_body_with_dropout(name):
    """A round from one state: what is trained differs in its body from what is trained without."""
    problem = blobs()
    bodies = []
    for rate in (0.0, 0.5):
        module = DroppingEncoder if name == "fedcr" else Dropping
        model = Model.of(module, problem.data.input_shape, problem.data.num_classes, dropout=rate)
        algorithm = make_algorithm(name, lr=0.05, **({"beta": 0.0} if name == "fedcr" else {}))
        dropping = replace(problem, model=model)
        state = run_rounds(algorithm, dropping, 1, jnp.array([0, 2, 3]))
        own, shared = jax.jit(algorithm.models)(dropping, state, KEY)
        bodies.append((own | shared)["representation"])
    assert 1e-4 < largest_gap(*bodies) < 10


def test_fedrods_body_and_heads_have_masks_of_their_own():
    keys = []

    def represent(params, x, *, key, budget):
        keys.append(key)
        return x

    def classify(head, features, *, key):
        keys.append(key)
        return features

    def look(loss, params, data, key, **options):
        loss(params, Batch(data.x, data.y, jnp.ones(3), key))
        return dict(params)

    class Looking(FedRoD):
        train = staticmethod(look)

    problem = blobs()
    model = SimpleNamespace(represent=represent, classify=classify)
    data = ClientData(jnp.ones((3, 3)), jnp.arange(3), jnp.int32(3))
    fake = SimpleNamespace(model=model, task=problem.task, data=problem.data, mean_loss=problem.mean_loss, project=None)
    Looking().rod_update(fake, data, KEY, jnp.zeros(1), {"head": jnp.zeros(1)})
    assert len({tuple(np.asarray(jax.random.key_data(key))) for key in keys}) == 3


def test_judging_has_no_dropout():
    data = blobs().data
    model = Model.of(Dropping, data.input_shape, data.num_classes, dropout=0.5)
    problem, algorithm = Problem(data, model), make_algorithm("fedavg")
    params = init(algorithm, problem)["params"]
    x = jnp.asarray(data.x[0])
    np.testing.assert_array_equal(model.apply(params, x), model.forward(params, x)[0])
    assert largest_gap(model.apply(params, x), model.forward(params, x, key=KEY)[0]) > 0
