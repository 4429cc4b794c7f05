"""Convolution, pooling and normalisation layers that stay fast under `vmap` and `scan`.

Convolutions are those of `nn/convolution.py`. No layer has state: normalisation is per sample, so a client holds
nothing but parameters.
"""

from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.nn import winograd
from fedlab_lite.nn.convolution import conv2d, pad_same, shifts
from fedlab_lite.util import InputError

HE_NORMAL = nnx.initializers.he_normal()

MaybeArray = jax.Array | None


def max_pool(x: jax.Array, size: int = 2, stride: int = 2, padding: str = "VALID") -> jax.Array:
    """The maximum over `size x size` windows of `x [B, H, W, C]`.

    It is taken over one axis after the other, by slices, so the gradient is fast in any loop. For 3x3 windows it is
    three times as fast as over all `size * size` entries at once.

    Example:
      >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
      [[5.0, 7.0], [13.0, 15.0]]
    """
    for axis in (1, 2):
        if padding == "SAME":
            x = pad_same(x, axis, size, stride, -jnp.inf)
        if size == stride:
            windows = x.shape[axis] // size
            x = jax.lax.slice_in_dim(x, 0, windows * size, axis=axis)
            x = x.reshape(*x.shape[:axis], windows, size, *x.shape[axis + 1 :])
            entries = winograd.unstack(x, axis + 1)
        else:
            entries = shifts(x, axis, size, stride)
        x = reduce(_larger, entries)
    return x


def _larger(a: jax.Array, b: jax.Array) -> jax.Array:
    """max(a, b), NaN included, as a plain selection; the gradient goes to one of the two (b when equal)."""
    return jnp.where((a > b) | jnp.isnan(a), a, b)


def group_norm(x: jax.Array, scale: jax.Array, offset: jax.Array, *, groups: int, epsilon: float = 1e-5) -> jax.Array:
    """Normalise `x [B, ..., C]` over space and the channels of each group, per sample; then scale and shift.

    The means are matrix products, because XLA's CPU reductions are not vectorised and take five times as long here.
    """
    batch, channels = x.shape[0], x.shape[-1]
    flat = x.reshape(batch, -1, channels)
    weights = jnp.full((batch, 1, flat.shape[1]), 1 / flat.shape[1], x.dtype)

    def mean(values):
        of_group = (weights @ values).reshape(batch, 1, groups, -1).mean(-1, keepdims=True)
        return jnp.broadcast_to(of_group, (batch, 1, groups, channels // groups)).reshape(batch, 1, channels)

    centred = flat - mean(flat)
    normal = centred * (jax.lax.rsqrt(mean(centred * centred) + epsilon) * scale)
    return (normal + offset).reshape(x.shape)


def layer_norm(x: jax.Array, scale: jax.Array, offset: jax.Array, *, epsilon: float = 1e-5) -> jax.Array:
    """Normalise `x [..., C]` over its channels at each position; then scale and shift (Ba et al. 2016).

    Example:
      >>> layer_norm(jnp.array([[1.0, 3.0], [5.0, 5.0]]), jnp.ones(2), jnp.zeros(2)).round(3).tolist()
      [[-1.0, 1.0], [0.0, 0.0]]
    """
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + epsilon) * scale + offset


def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Return `x [..., C] @ kernel [C, out] + bias [out]`, computed as one product of two matrices.

    Its gradients are such products too. On a CPU this is, with its gradient, a quarter faster than the product with a
    tensor of rank 3.
    """
    return (x.reshape(-1, x.shape[-1]) @ kernel + bias).reshape(*x.shape[:-1], -1)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Set entries to 0 with probability `rate` and scale the others to keep the mean; without a key return `x`.

    >>> dropout(jnp.ones(4), 0.5, None).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if key is None or rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """log(1 + exp(x)) to 1e-6, three times as fast as `jax.nn.softplus` on a CPU.

    With e = exp(-|x|) it is max(x, 0) + log(1 + e), and log(1 + e) = 2 artanh(t) at t = e / (2 + e) <= 1/3. There six
    terms of the series are enough.

    >>> softplus(jnp.array([-100.0, 0.0, 100.0])).round(6).tolist()
    [0.0, 0.6931470036506653, 100.0]
    """
    e = jnp.exp(-jnp.abs(x))
    t = e / (2 + e)
    square = t * t
    series = 1 + square * (1 / 3 + square * (1 / 5 + square * (1 / 7 + square * (1 / 9 + square / 11))))
    return jnp.maximum(x, 0) + 2 * t * series


softplus.defjvps(lambda tangent, _, x: tangent * jax.nn.sigmoid(x))


def is_pixels(x: jax.Array) -> bool:
    """Whether rows are pixels, of 8 or 16 bits, and no other numbers."""
    return x.dtype in (jnp.uint8, jnp.uint16)


def as_float(x: jax.Array) -> jax.Array:
    """Convert pixels (uint8, 0-255, or uint16, 0-65535) to floats in [0, 1]; other inputs are returned unchanged."""
    return x.astype(jnp.float32) / int(jnp.iinfo(x.dtype).max) if is_pixels(x) else x


class Conv(nnx.Module):
    """A `size x size` convolution, NHWC, with padding SAME and He-normal initial weights by default."""

    def __init__(
        self,
        channels: int,
        out: int,
        size: int = 3,
        stride: int = 1,
        *,
        padding: str = "SAME",
        use_bias: bool = False,
        kernel_init: Callable = HE_NORMAL,
        rngs: nnx.Rngs,
    ):
        self.kernel = nnx.Param(kernel_init(rngs.params(), (size, size, channels, out), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(out)) if use_bias else None
        self.stride, self.padding = stride, padding

    def __call__(self, x: jax.Array) -> jax.Array:
        y = conv2d(x, self.kernel[...], stride=self.stride, padding=self.padding)
        return y if self.bias is None else y + self.bias[...]


class GroupNorm(nnx.Module):
    """`group_norm` with its parameters; `groups=1` on a vector is LayerNorm.

    It replaces BatchNorm in the papers' networks. It has as many parameters (2 C) and no running statistics to average.
    The output of a sample never depends on the rest of its batch.
    """

    def __init__(self, channels: int, groups: int = 8):
        if channels % groups:
            raise InputError(f"{channels} channels do not divide into {groups} groups; choose a multiple of {groups}")
        self.scale = nnx.Param(jnp.ones(channels))
        self.offset = nnx.Param(jnp.zeros(channels))
        self.groups = groups

    def __call__(self, x: jax.Array) -> jax.Array:
        return group_norm(x, self.scale[...], self.offset[...], groups=self.groups)
