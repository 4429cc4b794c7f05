"""The explicit residual networks of FeDEQ's Tables II and V, and ResNet-18, without their last layer.

Two arrangements give FeDEQ's published parameter counts. On FEMNIST the first block of a group has a 1x1 convolution on
its shortcut where the shape changes. On CIFAR the shortcut has no parameters (every second pixel, zeros for the new
channels). Both end in two dense layers and a normalisation. Normalisation is per sample (see `layers.GroupNorm`).
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.nn.layers import Conv, GroupNorm, as_float, max_pool
from fedlab_lite.util.fields import Count, Counts, Range

BLOCKS = {  # Table V, "Blocks / Group"
    "femnist": {14: (1, 2, 2, 1), 20: (2, 3, 2, 2), 34: (3, 4, 5, 3)},
    "cifar10": {14: (2, 2, 2), 20: (3, 3, 3), 34: (5, 6, 5)},
    "cifar100": {14: (1, 2, 3), 20: (2, 3, 4), 34: (3, 5, 8)},
}
STEM_WIDTH = {"femnist": 32, "cifar10": 64, "cifar100": 64}  # Table V, "1 Initial Conv"
STEMS = ("cifar", "imagenet")  # of ResNet-18


class Block(nnx.Module):
    """The basic block of He et al. 2016: conv - norm - ReLU - conv - norm, plus the shortcut, then ReLU."""

    def __init__(self, channels: int, out: int, stride: int, *, projection: bool, rngs: nnx.Rngs):
        self.conv1 = Conv(channels, out, stride=stride, rngs=rngs)
        self.norm1 = GroupNorm(out)
        self.conv2 = Conv(out, out, rngs=rngs)
        self.norm2 = GroupNorm(out)
        changes = stride > 1 or channels != out
        self.project = Conv(channels, out, 1, stride, rngs=rngs) if changes and projection else None
        self.project_norm = GroupNorm(out) if changes and projection else None
        self.stride, self.extra = stride, out - channels

    def shortcut(self, x: jax.Array) -> jax.Array:
        if self.project is not None:
            return self.project_norm(self.project(x))
        x = x[:, :: self.stride, :: self.stride]
        before = self.extra // 2
        return jnp.pad(x, [(0, 0), (0, 0), (0, 0), (before, self.extra - before)])

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x)))))
        return nnx.relu(y + self.shortcut(x))


def groups(width: int, counts: tuple[int, ...], *, projection: bool, rngs: nnx.Rngs) -> tuple[nnx.List, int]:
    """Make groups of `counts` blocks, each twice as wide at half the resolution; return them and the last width."""
    blocks, channels = [], width
    for group, count in enumerate(counts):
        for index in range(count):
            stride = 2 if group > 0 and index == 0 else 1
            out = width * 2**group
            blocks.append(Block(channels, out, stride, projection=projection, rngs=rngs))
            channels = out
    return nnx.List(blocks), channels


class ResNet(nnx.Module):
    """The shared part of ResNet-`depth` (14, 20, 34) as in FeDEQ's Table V: `[B, H, W, C] -> [B, 128]`.

    `family` selects the row of the table: 'femnist', 'cifar10' or 'cifar100' ('auto': by channels and classes).
    `width` is the stem's number of channels (a multiple of 8; 0: the table's).
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        depth: int,
        num_classes: int,
        family: Annotated[str, ("auto", *BLOCKS)] = "auto",
        width: Annotated[int, Range(0)] = 0,
        rngs: nnx.Rngs,
    ):
        if family == "auto":
            family = "femnist" if input_shape[-1] == 1 else "cifar100" if num_classes >= 100 else "cifar10"
        width = width or STEM_WIDTH[family]
        femnist = family == "femnist"
        self.stem = Conv(input_shape[-1], width, rngs=rngs)
        self.stem_norm = GroupNorm(width)
        self.norm_first = femnist  # the reference's CIFAR stem is conv - ReLU - norm
        self.blocks, channels = groups(width, BLOCKS[family][depth], projection=femnist, rngs=rngs)
        self.dense1 = nnx.Linear(channels, 256, rngs=rngs)
        self.dense2 = nnx.Linear(256, 128, rngs=rngs)
        self.norm = GroupNorm(128, groups=1)
        self.features = 128

    def activations(self, x: jax.Array) -> dict[str, jax.Array]:
        """The outputs of 'stem', 'block1', ..., 'dense1', 'dense2'; the last is the features."""
        z = self.stem(as_float(x))
        z = nnx.relu(self.stem_norm(z)) if self.norm_first else self.stem_norm(nnx.relu(z))
        found = {"stem": z}
        for index, block in enumerate(self.blocks, 1):
            z = found[f"block{index}"] = block(z)
        z = found["dense1"] = nnx.relu(self.dense1(z.mean((1, 2))))
        return found | {"dense2": self.norm(nnx.relu(self.dense2(z)))}

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activations(x)["dense2"]


class ResNet18(nnx.Module):
    """ResNet-18 (He et al. 2016, Table 1), as in FedReCo's Fig. 2: `[B, H, W, C] -> [B, 8 width]`, the pooled features.

    It has 11,173,962 parameters on 32x32x3, with its head for ten classes; GroupNorm replaces BatchNorm. FedReCo gives
    only the name, and its code has no such network. `stem` 'cifar', a 3x3 convolution, is usual for small images.
    'imagenet' is the original, 7x7 at stride 2 and a max-pool: 11,689,512 parameters with 1000 classes.

    Args:
      width: channels of the first group, a multiple of 8; 64 in ResNet-18.
      blocks: blocks per group, (2, 2, 2, 2) in ResNet-18. Each group is twice as wide as the one before, at half the
        resolution.

    Example:
      >>> from fedlab_lite.nn import count_params, make_model
      >>> count_params(jax.eval_shape(make_model("resnet18", (32, 32, 3), 10).init, jax.random.key(0)))
      11173962
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        width: Count = 64,
        blocks: Counts = (2, 2, 2, 2),
        stem: Annotated[str, STEMS] = "cifar",
        rngs: nnx.Rngs,
    ):
        self.large = stem == "imagenet"
        size, stride = (7, 2) if self.large else (3, 1)
        self.stem = Conv(input_shape[-1], width, size, stride, rngs=rngs)
        self.stem_norm = GroupNorm(width)
        self.blocks, self.features = groups(width, blocks, projection=True, rngs=rngs)

    def activations(self, x: jax.Array) -> dict[str, jax.Array]:
        """The outputs of 'stem', 'block1', ..., 'pool'; the last is the features."""
        z = nnx.relu(self.stem_norm(self.stem(as_float(x))))
        z = max_pool(z, 3, 2, "SAME") if self.large else z
        found = {"stem": z}
        for index, block in enumerate(self.blocks, 1):
            z = found[f"block{index}"] = block(z)
        return found | {"pool": z.mean((1, 2))}

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activations(x)["pool"]
