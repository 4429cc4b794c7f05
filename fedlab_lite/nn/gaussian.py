"""FedCR's encoders: networks whose features are Gaussians, with means and deviations per row."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.nn.cnn import CNN5
from fedlab_lite.nn.mlp import MLP
from fedlab_lite.util.fields import Count, Range

LEAST = 1e-4  # smallest deviation, so that products of Gaussians stay finite


class Gaussian(NamedTuple):
    """The output of an encoder per row: z is normal with this mean and deviation, both `[B, latent]`."""

    mean: jax.Array
    deviation: jax.Array


class GaussianHead(nnx.Module):
    """A linear layer on one draw of z, or without a key on the mean of z.

    The logits of the mean are the mean of the logits over all draws.
    """

    def __init__(self, latent: int, num_classes: int, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(latent, num_classes, rngs=rngs)

    def __call__(self, features: Gaussian, *, key: jax.Array | None = None) -> jax.Array:
        mean, deviation = features
        if key is None:
            return self.linear(mean)
        return self.linear(mean + deviation * jax.random.normal(key, mean.shape, mean.dtype))


class Encoder(nnx.Module):
    """A network `body` with a linear layer from its features to the means and deviations (by softplus) of z."""

    def __init__(self, body: nnx.Module, latent: int, *, rngs: nnx.Rngs):
        self.body, self.latent = body, latent
        self.gaussian = nnx.Linear(body.features, 2 * latent, rngs=rngs)

    def make_head(self, num_classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        return GaussianHead(self.latent, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> Gaussian:
        mean, raw = jnp.split(self.gaussian(self.body(x)), 2, axis=-1)
        return Gaussian(mean, jnp.maximum(nnx.softplus(raw), LEAST))


class GaussianMLP(Encoder):
    """An MLP followed by a Gaussian of `latent` numbers."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        *,
        width: Count = 512,
        depth: Annotated[int, Range(0)] = 4,
        features: Annotated[int, Range(0)] = 128,
        latent: Count = 64,
        rngs: nnx.Rngs,
    ):
        super().__init__(MLP(input_shape, width=width, depth=depth, features=features, rngs=rngs), latent, rngs=rngs)


class GaussianCNN5(Encoder):
    """FedReCo's 5-layer CNN followed by the Gaussian of FedCR's code.

    It has 3,321,152 parameters on 32x32x3, and 2,570 in the head.

    Example:
      >>> from fedlab_lite.nn.model import Model, count_params
      >>> params = jax.eval_shape(Model.of(GaussianCNN5, (32, 32, 3), 10).init, jax.random.key(0))
      >>> count_params(params["representation"]), count_params(params["head"])
      (3321152, 2570)
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        channels: Annotated[tuple[int, ...], Range(1, empty=True)] = (),
        features: Count = 1024,
        latent: Count = 256,
        rngs: nnx.Rngs,
    ):
        super().__init__(CNN5(input_shape, channels=channels, features=features, rngs=rngs), latent, rngs=rngs)
