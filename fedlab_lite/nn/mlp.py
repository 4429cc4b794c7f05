"""Dense networks: the explicit network of FeDEQ's Figs. 3-4, and the 784-200-200-10 of the federated literature."""

import math
from itertools import pairwise
from typing import Annotated

import jax
from flax import nnx

from fedlab_lite.nn.layers import as_float
from fedlab_lite.util.fields import Count, Range


class MLP(nnx.Module):
    """`depth` dense layers of `width`, then one of `features` (0: none), ReLU after each.

    FeDEQ, Sec. III-C, setting (i): 784 -> 512 x 4 -> 128 -> 62 has 1,263,550 parameters, `Model`'s head included.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        *,
        width: Count = 512,
        depth: Annotated[int, Range(0)] = 4,
        features: Annotated[int, Range(0)] = 128,
        rngs: nnx.Rngs,
    ):
        sizes = [math.prod(input_shape), *[width] * depth, *([features] if features else [])]
        self.layers = nnx.List([nnx.Linear(m, n, rngs=rngs) for m, n in pairwise(sizes)])
        self.features = sizes[-1]

    def activations(self, x: jax.Array) -> dict[str, jax.Array]:
        """The output of each layer, 'dense1', ...; the last is the features."""
        found, z = {}, as_float(x).reshape(x.shape[0], -1)
        for index, layer in enumerate(self.layers, 1):
            z = found[f"dense{index}"] = nnx.relu(layer(z))
        return found

    def __call__(self, x: jax.Array) -> jax.Array:
        return [as_float(x).reshape(x.shape[0], -1), *self.activations(x).values()][-1]
