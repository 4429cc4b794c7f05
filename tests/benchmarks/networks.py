"""Networks of the benchmarks that the package does not have.

The plain ones are what a user of Flax writes: `nnx.Conv`, which is XLA's own convolution. With them, a bare step is the
limit that JAX sets, and DrJAX computes what it would in its users' hands.
"""

import jax
from flax import nnx

from fedlab_lite.nn.layers import Conv, GroupNorm, as_float


class PlainCNN(nnx.Module):
    """The package's `CNN` in Flax's layers."""

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        channels: tuple[int, int] = (32, 64),
        features: int = 512,
        rngs: nnx.Rngs,
    ):
        height, width, depth = input_shape
        first, second = channels
        self.conv1 = nnx.Conv(depth, first, (5, 5), rngs=rngs)
        self.conv2 = nnx.Conv(first, second, (5, 5), rngs=rngs)
        self.dense = nnx.Linear((height // 4) * (width // 4) * second, features, rngs=rngs)
        self.features = features

    def __call__(self, x: jax.Array) -> jax.Array:
        z = as_float(x)
        for conv in (self.conv1, self.conv2):
            z = nnx.max_pool(nnx.relu(conv(z)), (2, 2), (2, 2))
        return nnx.relu(self.dense(z.reshape(z.shape[0], -1)))


class SmallResNet(nnx.Module):
    """A 3x3 stem and two basic blocks of one width at full resolution, then the mean over pixels."""

    def __init__(self, input_shape: tuple[int, int, int], *, width: int = 64, plain_flax: bool = False, rngs: nnx.Rngs):
        def conv(channels):
            if plain_flax:
                return nnx.Conv(channels, width, (3, 3), use_bias=False, rngs=rngs)
            return Conv(channels, width, rngs=rngs)

        def norm():
            return nnx.GroupNorm(width, num_groups=8, rngs=rngs) if plain_flax else GroupNorm(width)

        self.stem, self.stem_norm = conv(input_shape[-1]), norm()
        self.convs = nnx.List([conv(width) for _ in range(4)])
        self.norms = nnx.List([norm() for _ in range(4)])
        self.features = width

    def __call__(self, x: jax.Array) -> jax.Array:
        z = nnx.relu(self.stem_norm(self.stem(as_float(x))))
        for i in (0, 2):
            y = nnx.relu(self.norms[i](self.convs[i](z)))
            z = nnx.relu(z + self.norms[i + 1](self.convs[i + 1](y)))
        return z.mean((1, 2))


NETWORKS = {  # lines for `fedlab_lite.nn.model.MODELS`
    "plain_cnn": (PlainCNN, {}),
    "small_resnet": (SmallResNet, {}),
    "plain_small_resnet": (SmallResNet, {"plain_flax": True}),
}
