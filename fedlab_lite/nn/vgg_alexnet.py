"""DePRL's networks without normalisation: VGG-11, AlexNet and a dense network, of Tables 4 to 6 and of its code.

They are convolutions with bias and ReLU, some followed by a 2x2 max-pool, then dense layers. `split` says which dense
layers are personal. 'last' is the last one, as the paper's text says. 'classifier' is all layers after the
convolutions, as in its code, and the last two of the dense network. Dropout stands before the same dense layers as in
the tables. Where it stands between the two parts, it belongs to the representation.

Images smaller than 32x32 get a black frame: 2 pixels wide for Fashion-MNIST's 28x28, which the paper's code resizes.
No layer normalises, so pixels are centred, (x / 255 - 0.5) / 0.25; the code uses the mean and deviation of the data
set. With pixels in [0, 1], VGG-11 on `textures` needs hundreds of steps more to exceed the majority baseline (always
predicting the commonest class). At stride 2 or 4 a convolution's windows lie one or two pixels from those of PyTorch's
symmetric padding.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.nn.layers import Conv, as_float, dropout, is_pixels, max_pool
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Count, Range, Rate

SPLITS = ("last", "classifier")
SIDE = 32  # of the smallest image that is not empty after the pools


def _centred(x: jax.Array) -> jax.Array:
    """Convert pixels (uint8 or uint16) to floats in [-2, 2]; other inputs are returned unchanged, as in `as_float`."""
    return (as_float(x) - 0.5) / 0.25 if is_pixels(x) else x


class Layer(NamedTuple):
    """A convolution followed by ReLU."""

    widths: int  # output channels, as a multiple of `width`
    size: int = 3
    stride: int = 1
    pool: bool = False  # a 2x2 max-pool after it


class Hidden(nnx.Module):
    """Dense layers of `sizes`, the input size first; ReLU and dropout at its rate follow each layer."""

    def __init__(self, sizes: Sequence[int], rates: Sequence[float], *, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(m, n, rngs=rngs) for m, n in pairwise(sizes)])
        self.rates = tuple(rates)

    def outputs(self, z: jax.Array, key: jax.Array | None) -> list[jax.Array]:
        found = []
        for index, (layer, rate) in enumerate(zip(self.layers, self.rates, strict=True)):
            z = dropout(nnx.relu(layer(z)), rate, key if key is None else jax.random.fold_in(key, index))
            found.append(z)
        return found


class Classifier(nnx.Module):
    """A head of several dense layers."""

    def __init__(self, sizes: Sequence[int], num_classes: int, rates: Sequence[float], *, rngs: nnx.Rngs):
        self.hidden = Hidden(sizes, rates, rngs=rngs)
        self.last = nnx.Linear(sizes[-1], num_classes, rngs=rngs)

    def __call__(self, features: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        return self.last(self.hidden.outputs(features, key)[-1])


class _Network(nnx.Module):
    """The representation: the layers before the dense layers of `sizes`, and the dense layers outside the head.

    Args:
      rates: dropout before each dense layer, the last included.
      own: the number of dense layers in the head.
    """

    def __init__(self, sizes: Sequence[int], rates: Sequence[float], own: int, *, rngs: nnx.Rngs):
        cut = len(sizes) - own
        self.rates = tuple(rates)
        self.dense = Hidden(sizes[: cut + 1], rates[1 : cut + 1], rngs=rngs)
        self.features = sizes[cut]
        self.rest = tuple(sizes[cut:]), tuple(rates[cut + 1 :])

    def make_head(self, num_classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        sizes, rates = self.rest
        if not rates:
            return nnx.Linear(self.features, num_classes, rngs=rngs)
        return Classifier(sizes, num_classes, rates, rngs=rngs)

    def convolved(self, x: jax.Array) -> dict[str, jax.Array]:
        """The outputs of the layers before the dense layers, by name; empty where there are none."""
        return {}

    def _outputs(self, x: jax.Array, key: jax.Array | None) -> dict[str, jax.Array]:
        first, key = (None, None) if key is None else jax.random.split(key)
        found = self.convolved(x)
        z = (next(reversed(found.values())) if found else as_float(x)).reshape(x.shape[0], -1)
        z = dropout(z, self.rates[0], first)
        dense = self.dense.outputs(z, key)
        return found | ({f"dense{i}": out for i, out in enumerate(dense, 1)} or {"flat": z})

    def activations(self, x: jax.Array) -> dict[str, jax.Array]:
        """The output of each layer, pooled for convolutions: 'conv1', ..., 'dense1', ...; the last is the features.

        The last is 'flat' where no dense layer is shared.
        """
        return self._outputs(x, None)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        return list(self._outputs(x, key).values())[-1]


class _ConvNet(_Network):
    """Convolutions `layers`, then dense layers of `hidden` widths; `dropped` says which have dropout before them.

    `dropped` includes the last dense layer.

    Args:
      width: channels of the first convolution; all other widths are multiples of it. 64 is the original network.
      dropout: the probability that an entry is set to 0, in training.
      split: which dense layers are the head, 'last' or 'classifier' (all).
    """

    layers: tuple[Layer, ...]
    hidden: tuple[int, ...]
    dropped: tuple[bool, ...]

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        width: Count = 64,
        dropout: Rate = 0.2,
        split: Annotated[str, SPLITS] = "last",
        rngs: nnx.Rngs,
    ):
        if len(input_shape) != 3:
            raise InputError(f"{type(self).__name__} needs images of shape (height, width, colours), not {input_shape}")
        channels = [width * layer.widths for layer in self.layers]
        rows, columns = (max(SIDE, side) for side in input_shape[:2])
        self.frame = rows - input_shape[0], columns - input_shape[1]
        for layer in self.layers:
            rows, columns = (-(-side // layer.stride) // (2 if layer.pool else 1) for side in (rows, columns))
        pairs = zip(pairwise([input_shape[-1], *channels]), self.layers, strict=True)
        self.convs = nnx.List([Conv(m, n, conv.size, conv.stride, use_bias=True, rngs=rngs) for (m, n), conv in pairs])
        sizes = [rows * columns * channels[-1], *(width * widths for widths in self.hidden)]
        rates = [dropout if drop else 0.0 for drop in self.dropped]
        super().__init__(sizes, rates, 1 if split == "last" else len(sizes), rngs=rngs)

    def convolved(self, x: jax.Array) -> dict[str, jax.Array]:
        """The outputs of the convolutions, after their pool, for framed images."""
        rows, columns = ((lost // 2, lost - lost // 2) for lost in self.frame)
        found, z = {}, _centred(jnp.pad(x, [(0, 0), rows, columns, (0, 0)]))
        for index, (conv, layer) in enumerate(zip(self.convs, self.layers, strict=True), 1):
            z = nnx.relu(conv(z))
            z = found[f"conv{index}"] = max_pool(z) if layer.pool else z
        return found


class VGG11(_ConvNet):
    """VGG-11 (Simonyan & Zisserman 2015, A) for 32x32, as in DePRL's code: 9,220,480 + 530,442 parameters, ten classes.

    It has eight 3x3 convolutions, a pool after the 1st, 2nd, 4th, 6th and 8th, and dense layers 512-512-classes.
    DePRL's Table 4 prints another network, which cannot be built. Its third convolution has 128 channels and its pools
    follow the 1st, 3rd, 5th, 7th and 8th. This leaves 512 numbers, but its `fc9` takes 4096. It also has 100 outputs
    for the ten classes of CIFAR-10.

    Example:
      >>> from fedlab_lite.nn import count_params, make_model
      >>> params = jax.eval_shape(make_model("vgg11", (32, 32, 3), 10, split="classifier").init, jax.random.key(0))
      >>> count_params(params["representation"]), count_params(params["head"])
      (9220480, 530442)
    """

    layers = (
        Layer(1, pool=True),
        Layer(2, pool=True),
        *(Layer(4), Layer(4, pool=True)),
        *(Layer(8), Layer(8, pool=True)),
        *(Layer(8), Layer(8, pool=True)),
    )
    hidden = (8, 8)
    dropped = (True, False, True)


class AlexNet(_ConvNet):
    """AlexNet of DePRL's Table 5: 3x3 convolutions, the first at stride 2; 23,271,114 parameters for Fashion-MNIST.

    A 32x32 image becomes 2x2 positions of 256 channels: the 1024 inputs of the table's first dense layer. The table
    prints a first convolution of three colours for grey images. It also prints 64, 128, 128, 512 and 512 biases for
    layers of 192, 384, 256, 4096 and 4096 outputs. Here a layer has as many biases as outputs.

    Example:
      >>> from fedlab_lite.nn import count_params, make_model
      >>> params = jax.eval_shape(make_model("alexnet", (28, 28, 1), 10).init, jax.random.key(0))
      >>> count_params(params["representation"]), count_params(params["head"])
      (23230144, 40970)
    """

    layers = (Layer(1, stride=2, pool=True), Layer(3, pool=True), Layer(6), Layer(4), Layer(4, pool=True))
    hidden = (64, 64)
    dropped = (True, True, False)


class AlexNetSmall(_ConvNet):
    """The AlexNet of DePRL's code: 11x11 at stride 4, 5x5, 3x3 three times, dense 256-128-128-classes.

    It has 2,454,208 + 50,698 parameters on 28x28x1 with ten classes: a ninth of Table 5's. The second number is the
    head of the code's split.
    """

    layers = (Layer(1, 11, 4, pool=True), Layer(3, 5, pool=True), Layer(6), Layer(4), Layer(4, pool=True))
    hidden = (2, 2)
    dropped = (True, True, False)


class DNN(_Network):
    """A dense network of DePRL, for HARBox, with the widths `hidden`: those of its Table 6, or of its code.

    The table has 900-512-256-128-64-5, 633,792 + 325 parameters. The code has 900-1024-512-256-128-128-5 (`dnn_wide`):
    1,611,648 + 17,157 parameters, the second in the head of the code's split.

    Args:
      hidden: the widths of all dense layers except the last.
      dropout: the probability that an entry is set to 0, in training, after each of these layers except the last.
      split: which dense layers are the head, 'last' or 'classifier' (the last two).

    Example:
      >>> from fedlab_lite.nn import count_params, make_model
      >>> params = jax.eval_shape(make_model("dnn", (900,), 5).init, jax.random.key(0))
      >>> count_params(params["representation"]), count_params(params["head"])
      (633792, 325)
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        *,
        hidden: Annotated[tuple[int, ...], Range(1, empty=True)] = (512, 256, 128, 64),
        dropout: Rate = 0.05,
        split: Annotated[str, SPLITS] = "last",
        rngs: nnx.Rngs,
    ):
        own = 1 if split == "last" else 2
        if len(hidden) < own:
            raise InputError(f"hidden = {hidden} and split = {split!r} leave none to share; set at least {own} widths")
        rates = [0.0, *[dropout] * (len(hidden) - 1), 0.0]
        super().__init__([prod(input_shape), *hidden], rates, own, rngs=rngs)
