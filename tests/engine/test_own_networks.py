"""Networks of one's own: what cannot be trained is refused, and the message says why."""

import jax.numpy as jnp
import pytest
from flax import nnx

from fedlab_lite.nn import Model
from fedlab_lite.util import InputError


class NoInput(nnx.Module):
    def __init__(self, width: int = 3):
        self.features = width

    def __call__(self, x):
        return x


class NoCall(nnx.Module):
    def __init__(self, input_shape, *, rngs):
        self.features = 3


class NoFeatures(nnx.Module):
    def __init__(self, input_shape, *, rngs):
        pass

    def __call__(self, x):
        return x


class Layered(nnx.Module):
    """A layer, and then what a subclass makes of it."""

    def __init__(self, input_shape, *, rngs):
        self.layer, self.features = nnx.Linear(input_shape[0], 8, rngs=rngs), 8
        self.then = self.second(rngs)

    def __call__(self, x):
        return self.then(self.layer(x.astype(jnp.float32)))


class Dropping(Layered):
    def second(self, rngs):
        return nnx.Dropout(0.5, rngs=rngs)


class DroppingLater(Layered):
    def second(self, rngs):
        return nnx.Sequential(nnx.relu, nnx.Dropout(0.5))


class Batched(Layered):
    def second(self, rngs):
        return nnx.BatchNorm(8, rngs=rngs)


class Counting(Layered):
    def second(self, rngs):
        self.calls = nnx.Variable(jnp.zeros(()))
        return nnx.relu


class NoDefault(nnx.Module):
    def __init__(self, input_shape, *, width, rngs):
        self.features = width

    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        (NoInput.__call__, {}, "not a class of Flax NNX modules; derive it from nnx.Module"),
        (dict, {}, "dict is not a class of Flax NNX modules"),
        (NoInput, {}, "NoInput lacks `input_shape` in __init__ and `rngs` in __init__"),
        (NoCall, {}, "NoCall lacks `__call__`"),
        (NoFeatures, {}, "neither `make_head` nor `features`, the length of its output"),
        (NoDefault, {}, "NoDefault needs a value for width"),
        (NoDefault, {"width": 7}, r"gives features \(1, 6\)"),
        (NoDefault, {"widht": 3}, "did you mean 'width'"),
        (
            Dropping,
            {},
            r"Dropping keeps a Dropout, self.then, .* use fedlab_lite.nn.layers.dropout",
        ),
        (DroppingLater, {}, r"keeps a Dropout, self.then.layers.1, "),
        (Batched, {}, r"Batched keeps a BatchNorm, self.then, .* use GroupNorm"),
        (Counting, {}, r"Counting keeps a Variable, self.calls, but a model may keep only parameters"),
    ],
)
def test_networks_that_cannot_be(module, options, words):
    with pytest.raises(InputError, match=words):
        Model.of(module, (6,), 3, **options)
