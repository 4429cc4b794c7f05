"""Plain convolutional networks."""

import jax
from flax import nnx

from fedlab_lite.nn.layers import Conv, GroupNorm, as_float, dropout, layer_norm, max_pool


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


class NormCNN(nnx.Module):
    """FedF-ADMM's Table III: 5x5 convolutions with bias, each with LayerNorm over its channels, and dropout throughout.

    2,156,682 parameters on 32x32x3 and ten classes, `Model`'s head included. On 28x28x1 the table's rows sum to
    1,663,562; its printed total, 1,663,432, is 130 short. The table has no pooling, but only with two 2x2 max-pools do
    its dense layers have their counts; the order within a layer (convolution, LayerNorm, ReLU, pool, dropout) is ours.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        channels: tuple[int, ...] = (32, 64),
        features: int = 512,
        dropout: float = 0.4,
        dense_dropout: float = 0.2,
        rngs: nnx.Rngs,
    ):
        height, width, depth = input_shape
        pairs = zip([depth, *channels[:-1]], channels, strict=True)
        self.convs = nnx.List([Conv(m, n, 5, use_bias=True, rngs=rngs) for m, n in pairs])
        self.norms = nnx.List([GroupNorm(n, groups=1) for n in channels])
        shrink = 2 ** len(channels)
        self.dense = nnx.Linear((height // shrink) * (width // shrink) * channels[-1], features, rngs=rngs)
        self.features, self.rates = features, (dropout, dense_dropout)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        keys = [None] * (len(self.convs) + 1) if key is None else jax.random.split(key, len(self.convs) + 1)
        z = as_float(x)
        for conv, norm, conv_key in zip(self.convs, self.norms, keys, strict=False):
            z = nnx.relu(layer_norm(conv(z), norm.scale[...], norm.offset[...]))
            z = dropout(max_pool(z), self.rates[0], conv_key)
        return dropout(nnx.relu(self.dense(z.reshape(z.shape[0], -1))), self.rates[1], keys[-1])
