"""The networks of FL-DEQ (Sec. IV-A): explicit and equilibrium networks that differ only in their middle layers.

All have an input convolution, a pooling, the mean over positions and, as `Model`'s head, the dense layer. Between them
an explicit network has `layers` different maps, an equilibrium network one map of `layers` parts at its fixed point.
The paper prints ratios of parameters, but no counts and no widths. Its three ratios hold with 56 channels for explicit
networks and 48 for equilibrium networks. (At equal width one block of five would save 80 %, not 84 %.)
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.deq import Solution
from fedlab_lite.nn.equilibrium_nets import Solve, residual_arrays, residual_cell
from fedlab_lite.nn.layers import Conv, GroupNorm, MaybeArray, as_float, conv2d, group_norm, max_pool
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Count

SMALL = nnx.initializers.normal(0.01)  # initial weights of the tutorial (ref. [19]) whose cell the paper uses


class ResidualBlock(nnx.Module):
    """The residual block f(z, x) = B(s(z + B(x + W2 * B(s(W1 * z))))) of Sec. IV-A (an unnumbered equation).

    s is ReLU and B is group normalisation.
    """

    counts_stem = False

    def __init__(self, channels: int, groups: int, *, kernel_init, rngs: nnx.Rngs):
        self.conv1, self.conv2 = (Conv(channels, channels, kernel_init=kernel_init, rngs=rngs) for _ in range(2))
        self.norm1, self.norm2, self.norm3 = (GroupNorm(channels, groups) for _ in range(3))

    def arrays(self) -> dict:
        return residual_arrays(self)

    @staticmethod
    def apply(params: dict, x: jax.Array | float, z: jax.Array, groups: int) -> jax.Array:
        return residual_cell(params, x, z, activation=nnx.relu, groups=groups)


class ConvLayer(nnx.Module):
    """The layer f(z, x) = B(s(W * z + x)): eq. (2) with a convolution, and U x from the input layer."""

    counts_stem = True

    def __init__(self, channels: int, groups: int, *, kernel_init, rngs: nnx.Rngs):
        self.conv, self.norm = Conv(channels, channels, kernel_init=kernel_init, rngs=rngs), GroupNorm(channels, groups)

    def arrays(self) -> dict:
        return {"conv": self.conv.kernel[...], "scale": self.norm.scale[...], "offset": self.norm.offset[...]}

    @staticmethod
    def apply(params: dict, x: jax.Array | float, z: jax.Array, groups: int) -> jax.Array:
        z = nnx.relu(conv2d(z, params["conv"]) + x)
        return group_norm(z, params["scale"], params["offset"], groups=groups)


class _Stem(nnx.Module):
    """The input layers: convolution, normalisation, ReLU and a `pool x pool` max-pool."""

    def __init__(self, input_shape: tuple[int, int, int], channels: int, groups: int, pool: int, *, rngs: nnx.Rngs):
        if min(input_shape[:2]) < pool:
            raise InputError(f"pool = {pool}: must be no larger than the image {input_shape[:2]}")
        self.conv, self.norm = Conv(input_shape[-1], channels, rngs=rngs), GroupNorm(channels, groups)
        self.pool = pool

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.conv(as_float(x))))
        return max_pool(x, self.pool, self.pool) if self.pool > 1 else x


class _Explicit(nnx.Module):
    """An explicit network of `layers` different maps in sequence; a CNN counts its input convolution as the first."""

    part: type[nnx.Module]

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        layers: Count = 1,
        channels: Count = 56,
        groups: Count = 8,
        pool: Count = 2,
        rngs: nnx.Rngs,
    ):
        self.stem = _Stem(input_shape, channels, groups, pool, rngs=rngs)
        own = layers - self.part.counts_stem
        he = nnx.initializers.he_normal()
        self.parts = nnx.List([self.part(channels, groups, kernel_init=he, rngs=rngs) for _ in range(own)])
        self.features, self.groups = channels, groups

    def __call__(self, x: jax.Array) -> jax.Array:
        return _read_out(_chain(self.part.apply, self.groups, _arrays(self.parts), 0.0, self.stem(x)))


class _Equilibrium(nnx.Module):
    """An equilibrium network z* = f(z*, x), eq. (4), with f = f_layers(... f_1(z, x) ..., x)."""

    part: type[nnx.Module]

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        layers: Count = 1,
        channels: Count = 48,
        groups: Count = 8,
        pool: Count = 2,
        solve: Solve,
        rngs: nnx.Rngs,
    ):
        self.stem = _Stem(input_shape, channels, groups, pool, rngs=rngs)
        self.parts = nnx.List([self.part(channels, groups, kernel_init=SMALL, rngs=rngs) for _ in range(layers)])
        self.features, self.groups, self.solve = channels, groups, solve

    def __call__(
        self, x: jax.Array, *, z0: MaybeArray = None, budget: MaybeArray = None, key: MaybeArray = None
    ) -> tuple[jax.Array, Solution]:
        cell = partial(_chain, self.part.apply, self.groups)
        z, solution = self.solve(cell, _arrays(self.parts), self.stem(x), z0, budget=budget, key=key)
        return _read_out(z), solution


def _read_out(z: jax.Array) -> jax.Array:
    """The mean of s(z) over positions.

    Without s the mean of normalised values would carry almost no information.
    """
    return nnx.relu(z).mean((1, 2))


def _arrays(parts: nnx.List) -> dict:
    """The arrays of all parts, stacked on axis 0; their shapes are equal, so one loop body is compiled for all."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(part.arrays() for part in parts)) if parts else {}


def _chain(apply, groups: int, params: dict, x: jax.Array | float, z: jax.Array) -> jax.Array:
    """Apply the parts in sequence: z <- f_i(z, x)."""
    return jax.lax.scan(lambda z, part: (apply(part, x, z, groups), None), z, params)[0] if params else z


class FLResNet(_Explicit):
    """FL-ResNet: `layers` residual blocks, each with weights of its own."""

    part = ResidualBlock


class FLCNN(_Explicit):
    """FL-CNN: `layers` convolutional layers, the input layer included, each with weights of its own."""

    part = ConvLayer


class FLDEQResNet(_Equilibrium):
    """FL-DEQ-ResNet: the equilibrium of `layers` residual blocks."""

    part = ResidualBlock


class FLDEQCNN(_Equilibrium):
    """FL-DEQ-CNN: the equilibrium of `layers` convolutional layers."""

    part = ConvLayer
