"""Plain convolutional networks."""

import jax
from flax import nnx

from fedlab_lite.nn.layers import Conv, as_float, max_pool


class CNN(nnx.Module):
    """5x5 convolutions of `channels`, each followed by ReLU and a 2x2 max-pool, then a dense layer of `features`.

    The default (32, 64, 512) is the network of the FedAvg paper (McMahan et al. 2017, Sec. 3): 1,663,370 parameters
    on 28x28x1 and ten classes, `Model`'s head included.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        channels: tuple[int, ...] = (32, 64),
        features: int = 512,
        rngs: nnx.Rngs,
    ):
        height, width, depth = input_shape
        pairs = zip([depth, *channels[:-1]], channels, strict=True)
        self.convs = nnx.List([Conv(m, n, 5, use_bias=True, rngs=rngs) for m, n in pairs])
        shrink = 2 ** len(channels)
        self.dense = nnx.Linear((height // shrink) * (width // shrink) * channels[-1], features, rngs=rngs)
        self.features = features

    def __call__(self, x: jax.Array) -> jax.Array:
        z = as_float(x)
        for conv in self.convs:
            z = max_pool(nnx.relu(conv(z)))
        return nnx.relu(self.dense(z.reshape(z.shape[0], -1)))
