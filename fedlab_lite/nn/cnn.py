"""Plain convolutional networks."""

import math
from itertools import pairwise
from typing import Annotated

import jax
from flax import nnx

from fedlab_lite.nn.layers import Conv, GroupNorm, as_float, dropout, layer_norm, max_pool
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Count, Counts, Range, Rate

PADDINGS = {"SAME": 0, "VALID": 4}  # rows and columns that a 5x5 convolution removes


class CNN(nnx.Module):
    """5x5 convolutions of `channels`, each followed by ReLU and a 2x2 max-pool, then a dense layer of `features`.

    The default (32, 64, 512) is the network of the FedAvg paper (McMahan et al. 2017, Sec. 3). It has 1,663,370
    parameters on 28x28x1 and ten classes, `Model`'s head included. `hidden` gives further dense layers before the last.
    `padding` is that of the convolutions, 'SAME' or 'VALID'.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        channels: Counts = (32, 64),
        hidden: Annotated[tuple[int, ...], Range(1, empty=True)] = (),
        features: Count = 512,
        padding: Annotated[str, tuple(PADDINGS)] = "SAME",
        rngs: nnx.Rngs,
    ):
        height, width, depth = input_shape
        pairs = zip([depth, *channels[:-1]], channels, strict=True)
        self.convs = nnx.List([Conv(m, n, 5, padding=padding, use_bias=True, rngs=rngs) for m, n in pairs])
        lost = PADDINGS[padding]
        for _ in channels:
            height, width = (height - lost) // 2, (width - lost) // 2
        if min(height, width) < 1:
            raise InputError(
                f"inputs {input_shape} are too small for {len(channels)} convolutions of 5x5 ({padding}), each with a "
                "2x2 max-pool; use larger inputs, a shorter list of channels, or padding 'SAME'"
            )
        sizes = [height * width * channels[-1], *hidden]
        if hidden:
            self.hidden = nnx.List([nnx.Linear(m, n, rngs=rngs) for m, n in pairwise(sizes)])
        self.dense = nnx.Linear(sizes[-1], features, rngs=rngs)
        self.features = features

    def activations(self, x: jax.Array) -> dict[str, jax.Array]:
        """The output of each layer, pooled for convolutions: 'conv1', ..., 'dense1', ...; the last is the features."""
        found, z = {}, as_float(x)
        for index, conv in enumerate(self.convs, 1):
            z = found[f"conv{index}"] = max_pool(nnx.relu(conv(z)))
        z = z.reshape(z.shape[0], -1)
        for index, dense in enumerate([*getattr(self, "hidden", ()), self.dense], 1):
            z = found[f"dense{index}"] = nnx.relu(dense(z))
        return found

    def __call__(self, x: jax.Array) -> jax.Array:
        return list(self.activations(x).values())[-1]


class CNN5(CNN):
    """FedReCo's 5-layer CNN (Sec. 6): two 5x5 convolutions without padding and two dense layers; the head is the fifth.

    The paper gives no widths. Those of its code are 4 and 12 channels on grey images, 64 and 64 on colour images, and
    1024 for both dense layers. This gives 1,248,548 parameters on 28x28x1, 2,796,352 on 32x32x3, and 10,250 in the
    head. `channels`: () stands for the code's.

    Example:
      >>> from fedlab_lite.nn import count_params, make_model
      >>> params = jax.eval_shape(make_model("cnn5", (28, 28, 1), 10).init, jax.random.key(0))
      >>> count_params(params["representation"]), count_params(params["head"])
      (1248548, 10250)
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        channels: Annotated[tuple[int, ...], Range(1, empty=True)] = (),
        features: Count = 1024,
        rngs: nnx.Rngs,
    ):
        channels = channels or ((4, 12) if input_shape[-1] == 1 else (64, 64))
        super().__init__(
            input_shape, channels=channels, hidden=(features,), features=features, padding="VALID", rngs=rngs
        )


class NormCNN(nnx.Module):
    """The CNN of FedF-ADMM's Table III: 5x5 convolutions with bias, LayerNorm over the channels, and dropout.

    It has 2,156,682 parameters on 32x32x3 and ten classes, `Model`'s head included. On 28x28x1 the table's rows sum to
    1,663,562; its printed total, 1,663,432, is 130 less. The table has no pooling, but the parameter counts of its
    dense layers need two 2x2 max-pools. The order within a layer (convolution, LayerNorm, ReLU, pool, dropout) is ours.

    `stride` is that of the first convolution, 1 in the table; a larger one makes all later layers cheaper. `centre` is
    subtracted from the pixels in [0, 1]. The paper does not say whether it does this; most code subtracts 0.5. With 0
    the features of any two photographs are nearly equal. A step towards one label then changes all rows alike.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        channels: Counts = (32, 64),
        features: Count = 512,
        dropout: Rate = 0.4,
        dense_dropout: Rate = 0.2,
        stride: Count = 1,
        centre: Annotated[float, Range(0, 1)] = 0.0,
        rngs: nnx.Rngs,
    ):
        *sides, depth = input_shape
        pairs = zip([depth, *channels[:-1]], channels, strict=True)
        strides = (stride, *[1] * (len(channels) - 1))
        self.convs = nnx.List([Conv(*c, 5, s, use_bias=True, rngs=rngs) for c, s in zip(pairs, strides, strict=True)])
        self.norms = nnx.List([GroupNorm(n, groups=1) for n in channels])
        places = math.prod(math.ceil(side / stride) // 2 ** len(channels) for side in sides)
        if not places:
            raise InputError(
                f"inputs {input_shape} are too small for a first convolution at stride {stride} and {len(channels)} "
                "max-pools of 2x2; use a smaller stride, a shorter list of channels, or larger images"
            )
        self.dense = nnx.Linear(places * channels[-1], features, rngs=rngs)
        self.features, self.rates, self.centre = features, (dropout, dense_dropout), centre

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        keys = [None] * (len(self.convs) + 1) if key is None else jax.random.split(key, len(self.convs) + 1)
        z = as_float(x) - self.centre
        for conv, norm, conv_key in zip(self.convs, self.norms, keys, strict=False):
            z = nnx.relu(layer_norm(conv(z), norm.scale[...], norm.offset[...]))
            z = dropout(max_pool(z), self.rates[0], conv_key)
        return dropout(nnx.relu(self.dense(z.reshape(z.shape[0], -1))), self.rates[1], keys[-1])
