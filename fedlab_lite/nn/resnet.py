"""The explicit residual networks of FeDEQ's Tables II and V, without their last layer (which is personal).

Two arrangements give the published parameter counts. On FEMNIST a group's first block has a 1x1 convolution on its
shortcut where the shape changes; on CIFAR the shortcut has no parameters (every second pixel, zeros for the new
channels). Both end in two dense layers and a normalisation. Normalisation is per sample (see `layers.GroupNorm`).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.errors import choose
from fedlab_lite.nn.layers import Conv, GroupNorm, as_float

BLOCKS = {  # Table V, "Blocks / Group"
    "femnist": {14: (1, 2, 2, 1), 20: (2, 3, 2, 2), 34: (3, 4, 5, 3)},
    "cifar10": {14: (2, 2, 2), 20: (3, 3, 3), 34: (5, 6, 5)},
    "cifar100": {14: (1, 2, 3), 20: (2, 3, 4), 34: (3, 5, 8)},
}
STEM_WIDTH = {"femnist": 32, "cifar10": 64, "cifar100": 64}  # Table V, "1 Initial Conv"


class Block(nnx.Module):
    """conv - norm - ReLU - conv - norm, plus the shortcut, ReLU (He et al. 2016, the basic block)."""

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


class ResNet(nnx.Module):
    """ResNet-14/20/34 as FeDEQ's Table V lists them: shared part only, `[B, H, W, C] -> [B, 128]`.

    `family` says which row of the table: 'femnist', 'cifar10' or 'cifar100' ('auto': by channels and classes).
    `width` is the stem's number of channels (multiple of 8; 0: the table's).
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        *,
        depth: int,
        num_classes: int,
        family: str = "auto",
        width: int = 0,
        rngs: nnx.Rngs,
    ):
        if family == "auto":
            family = "femnist" if input_shape[-1] == 1 else "cifar100" if num_classes >= 100 else "cifar10"
        choose("ResNet family", family, BLOCKS)
        width = width or STEM_WIDTH[family]
        femnist = family == "femnist"
        self.stem = Conv(input_shape[-1], width, rngs=rngs)
        self.stem_norm = GroupNorm(width)
        self.norm_first = femnist  # the reference's CIFAR stem is conv - ReLU - norm
        blocks, channels = [], width
        for group, count in enumerate(BLOCKS[family][depth]):
            for index in range(count):
                stride = 2 if group > 0 and index == 0 else 1
                out = width * 2**group
                blocks.append(Block(channels, out, stride, projection=femnist, rngs=rngs))
                channels = out
        self.blocks = nnx.List(blocks)
        self.dense1 = nnx.Linear(channels, 256, rngs=rngs)
        self.dense2 = nnx.Linear(256, 128, rngs=rngs)
        self.norm = GroupNorm(128, groups=1)
        self.features = 128

    def __call__(self, x: jax.Array) -> jax.Array:
        z = self.stem(as_float(x))
        z = nnx.relu(self.stem_norm(z)) if self.norm_first else self.stem_norm(nnx.relu(z))
        for block in self.blocks:
            z = block(z)
        z = nnx.relu(self.dense1(z.mean((1, 2))))
        return self.norm(nnx.relu(self.dense2(z)))
