"""Transformers for next-character prediction: FeDEQ's Transformer-4/8/12 and DEQ-Transformer (Tables II and VI).

Each layer adds the embedding of its input again, as in the Universal Transformer, but every layer has its own weights.
The layers are pre-LN: h <- h + e, h <- h + MHA(LN h), h <- h + FFN(LN h). The last layer, a LayerNorm and the dense
layer onto the vocabulary are personal. Equal layers are stacked on axis 0 of their parameters and scanned, so twelve
layers compile as fast as one.

Tables II and VI count a "Transformer-8" differently. Here, as in Table II, it has 8 layers, of which 7 are shared
(1.43 MB) and one is personal (0.22 MB).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.deq import Solution
from fedlab_lite.nn.equilibrium_nets import Solve
from fedlab_lite.nn.layers import MaybeArray, dense, layer_norm
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Count, Rate

SMALL = nnx.initializers.truncated_normal(0.02)


class Features(NamedTuple):
    """The input of a head: `h [B, T, d]`, its layer's `injection [B, T, d]`, and `real [B, T]`, False for padding."""

    h: jax.Array
    injection: jax.Array
    real: jax.Array


def attention(params: dict, h: jax.Array, allowed: jax.Array, heads: int) -> jax.Array:
    """Multi-head self-attention of `h [B, T, d]` over the keys that `allowed [B, T, T]` (query, key) permits."""
    batch, length, width = h.shape
    joint = dense(h, params["qkv"], params["qkv_bias"]).reshape(batch, length, 3, heads, width // heads)
    q, k, v = joint.transpose(2, 0, 3, 1, 4)  # [B, heads, T, d / heads]
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(width // heads)
    weights = jax.nn.softmax(jnp.where(allowed[:, None], scores, -1e10))
    mixed = (weights @ v).swapaxes(1, 2).reshape(batch, length, width)
    return dense(mixed, params["out"], params["out_bias"])


def ut_layers(
    params: dict, e: jax.Array, h: jax.Array, *, allowed: jax.Array, kept: MaybeArray, heads: int
) -> jax.Array:
    """Apply the layers stacked in `params` to `h [B, T, d]`, each with the injection `e [B, T, d]`.

    `kept [layers, 2, B, T, d]` holds the factors of dropout, or is None.
    """

    def layer(h, of_layer):
        params, kept = of_layer

        def drop(y, index):
            return y if kept is None else y * kept[index]

        h = h + e
        y = layer_norm(h, params["scale1"], params["offset1"])
        h = h + drop(attention(params, y, allowed, heads), 0)
        y = layer_norm(h, params["scale2"], params["offset2"])
        y = dense(jax.nn.gelu(dense(y, params["up"], params["up_bias"])), params["down"], params["down_bias"])
        return h + drop(y, 1), None

    return jax.lax.scan(layer, h, (params, kept))[0]


def unit(e: jax.Array) -> jax.Array:
    """Scale `e [..., d]` to mean 0 and variance 1 over d: LayerNorm without parameters."""
    return layer_norm(e, 1.0, 0.0)


def equilibrium_cell(params: dict, u: jax.Array, z: jax.Array, **masks) -> jax.Array:
    """The cell of the DEQ-Transformer: g(z; u) = LN(layers(z; u))."""
    return layer_norm(ut_layers(params["layers"], u, z, **masks), params["scale"], params["offset"])


class UTLayers(nnx.Module):
    """`count` layers of `width` with stacked parameters; 49,984 parameters per layer at width 64."""

    def __init__(self, count: int, width: int, *, heads: int, dropout: float, rngs: nnx.Rngs):
        if width % heads:
            raise InputError(f"width {width} cannot be divided among {heads} heads; choose a multiple of {heads}")
        normal = nnx.initializers.variance_scaling(2 / math.sqrt(count), "fan_in", "truncated_normal", batch_axis=0)
        sizes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
        arrays = {name: normal(rngs.params(), (count, *shape)) for name, shape in sizes.items()}
        arrays |= {f"{name}_bias": jnp.zeros((count, shape[1])) for name, shape in sizes.items()}
        arrays |= {name: jnp.ones((count, width)) for name in ("scale1", "scale2")}
        arrays |= {name: jnp.zeros((count, width)) for name in ("offset1", "offset2")}
        self.params = nnx.Dict({name: nnx.Param(array) for name, array in arrays.items()})
        self.count, self.heads, self.dropout = count, heads, dropout

    def arrays(self) -> dict:
        return {name: param[...] for name, param in self.params.items()}

    def masks(self, real: jax.Array, key: MaybeArray) -> dict:
        """The keyword arguments of `ut_layers`; a position attends to itself and earlier ones, not to padding."""
        batch, length = real.shape
        allowed = real[:, None, :] & jnp.tri(length, dtype=bool)
        kept = None
        if key is not None and self.dropout:
            shape = (self.count, 2, batch, length, self.params["out"].shape[-1])
            kept = jax.random.bernoulli(key, 1 - self.dropout, shape) / jnp.float32(1 - self.dropout)
        return {"allowed": allowed, "kept": kept, "heads": self.heads}


class LayerNorm(nnx.Module):
    """`layer_norm` with its parameters."""

    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.ones(width))
        self.offset = nnx.Param(jnp.zeros(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        return layer_norm(x, self.scale[...], self.offset[...])


class Head(nnx.Module):
    """The personal part: one layer, a LayerNorm and a dense layer; gives logits `[B, T, num_classes]`."""

    def __init__(self, width: int, num_classes: int, *, heads: int, dropout: float, rngs: nnx.Rngs):
        self.layer = UTLayers(1, width, heads=heads, dropout=dropout, rngs=rngs)
        self.norm = LayerNorm(width)
        self.dense = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, features: Features, *, key: MaybeArray = None) -> jax.Array:
        masks = self.layer.masks(features.real, key)
        return self.dense(self.norm(ut_layers(self.layer.arrays(), features.injection, features.h, **masks)))


class Embedding(nnx.Module):
    """The embedding of token ids `[B, T]` (0: padding) as vectors `[B, T, d]`, with learned positions `[T, d]`."""

    def __init__(self, input_shape: tuple[int], vocabulary: int, width: int, *, rngs: nnx.Rngs):
        if len(input_shape) != 1:
            raise InputError(f"a Transformer needs rows of T token ids, shape (T,), not {input_shape}")
        self.tokens = nnx.Param(SMALL(rngs.params(), (vocabulary, width)))
        self.positions = nnx.Param(SMALL(rngs.params(), (*input_shape, width)))

    def __call__(self, x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise InputError(f"token ids must be integers, got {x.dtype}")
        table = self.tokens[...]
        return jax.nn.one_hot(x, len(table), dtype=table.dtype) @ table  # its gradient is a product, not a scatter


class _Shared(nnx.Module):
    """The shared part of a Transformer: embedding and layers; `make_head` makes the personal part."""

    def __init__(
        self, input_shape, vocabulary: int, layers: int, width: int, *, heads: int, dropout: float, rngs: nnx.Rngs
    ):
        self.embed = Embedding(input_shape, vocabulary, width, rngs=rngs)
        self.layers = UTLayers(layers, width, heads=heads, dropout=dropout, rngs=rngs)
        self.width = width

    def make_head(self, num_classes: int, *, rngs: nnx.Rngs) -> Head:
        return Head(self.width, num_classes, heads=self.layers.heads, dropout=self.layers.dropout, rngs=rngs)


class Transformer(_Shared):
    """The shared part of Transformer-`depth`: embedding and `depth` - 1 layers; the last layer is in the head.

    It has 356,672 parameters at depth 8. `num_classes` is the vocabulary, `width` the embedding's length d.

    Example:
      >>> from fedlab_lite.nn import make_model
      >>> model = make_model("transformer8", (16,), 90)
      >>> params = model.init(jax.random.key(0))
      >>> model.apply(params, jnp.ones((2, 16), jnp.int32)).shape
      (2, 16, 90)
    """

    def __init__(
        self,
        input_shape: tuple[int],
        *,
        depth: Count,
        num_classes: int,
        width: Count = 64,
        heads: Count = 4,
        dropout: Rate = 0.1,
        rngs: nnx.Rngs,
    ):
        super().__init__(input_shape, num_classes, depth - 1, width, heads=heads, dropout=dropout, rngs=rngs)

    def __call__(self, x: jax.Array, *, key: MaybeArray = None) -> Features:
        e, real = self.embed(x) + self.embed.positions[...], x > 0
        h = ut_layers(self.layers.arrays(), e, jnp.zeros_like(e), **self.layers.masks(real, key))
        return Features(h, e, real)


class DEQTransformer(_Shared):
    """The shared part of the DEQ-Transformer: embedding, and one equilibrium of `layers` layers and a LayerNorm.

    It has 206,848 parameters. The head's layer takes the token embedding without positions, as in the reference code.

    The injection is normalised first (`unit`). The cell's LayerNorm keeps z at variance 1. Embeddings are drawn with
    standard deviation 0.02, so without normalisation z* would be nearly the same for every text. The same draw is used
    in BERT, where LayerNorm follows the embeddings (Devlin et al. 2019; `embedding_postprocessor` of their code).
    Likewise GroupNorm follows the stem of DEQ-ResNet. The reference code has no such normalisation. An explicit
    Transformer does not need it: its state starts at 0, so its first layer's LayerNorm sees only the embedding.

    The dropout masks are drawn once per pass and stay fixed during the solve, so z* is the fixed point of one map.
    Every position is a separate sample of the solver, so no iterate depends on a later token.

    Example:
      >>> from fedlab_lite.nn import make_model
      >>> model = make_model("deq_transformer", (16,), 90, layers=1, width=8)
      >>> params = model.init(jax.random.key(0))
      >>> logits, solution = model.forward(params, jnp.ones((2, 16), jnp.int32), key=jax.random.key(1))
      >>> logits.shape, solution.z.shape
      ((2, 16, 90), (2, 16, 8))
    """

    def __init__(
        self,
        input_shape: tuple[int],
        *,
        num_classes: int,
        layers: Count = 4,
        width: Count = 64,
        heads: Count = 4,
        dropout: Rate = 0.1,
        solve: Solve,
        rngs: nnx.Rngs,
    ):
        super().__init__(input_shape, num_classes, layers, width, heads=heads, dropout=dropout, rngs=rngs)
        self.norm, self.solve = LayerNorm(width), solve

    def __call__(
        self, x: jax.Array, *, key: MaybeArray = None, z0: MaybeArray = None, budget: MaybeArray = None
    ) -> tuple[Features, Solution]:
        e, real = self.embed(x), x > 0
        cell = partial(equilibrium_cell, **self.layers.masks(real, key))
        params = {"layers": self.layers.arrays(), "scale": self.norm.scale[...], "offset": self.norm.offset[...]}
        u = unit(e + self.embed.positions[...])
        z, solution = self.solve(cell, params, u, z0, budget=budget, positions=True, key=key)
        return Features(z, unit(e), real), solution
