"""Convolution as matrix products: what is fast on a CPU, and variants of it for a GPU.

XLA's CPU convolution loses most of its speed inside `lax.scan`, `lax.map` and `while_loop`. Under `vmap` over
per-client weights it becomes a grouped convolution, which is slower still. Here a convolution is `k*k` shifted slices
side by side (patches, "im2col") and one matrix product. This has the speed of a matrix product in all of these cases.

On a GPU the patches cost memory and time, because they are written and read again. `VARIANTS` has other ways, which
compute the same to rounding. `ON_CUDA` is the one that is used there.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fedlab_lite.nn import winograd
from fedlab_lite.util.jax_setup import PRECISIONS

ON_CUDA = "im2col"  # of VARIANTS, for programs that are lowered for CUDA; no other one was measured to be faster yet


def _same_padding(size: int, window: int, stride: int) -> tuple[int, int]:
    """The padding before and after an axis that makes the output ceil(size / stride) long (TensorFlow's SAME)."""
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def pad_same(x: jax.Array, axis: int, size: int, stride: int, fill: float) -> jax.Array:
    """The array with an axis padded as SAME asks, for windows of `size`."""
    pads = [(0, 0)] * x.ndim
    pads[axis] = _same_padding(x.shape[axis], size, stride)
    return jnp.pad(x, pads, constant_values=fill)


def shifts(x: jax.Array, axis: int, size: int, stride: int) -> list[jax.Array]:
    """The `size` shifted views of an axis, every `stride`-th entry of each."""
    last = (x.shape[axis] - size) // stride * stride
    return [jax.lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(size)]


def _patches(x: jax.Array, size: int, stride: int, padding: str) -> jax.Array:
    """What each output pixel sees, `[B, H', W', size * size * C]`."""
    if padding == "SAME":
        x = pad_same(pad_same(x, 1, size, stride, 0.0), 2, size, stride, 0.0)
    rows = shifts(x, 1, size, stride)
    return jnp.concatenate([patch for row in rows for patch in shifts(row, 2, size, stride)], axis=-1)


def _im2col(product: Callable, x: jax.Array, kernel: jax.Array, *, stride: int, padding: str) -> jax.Array:
    size, _, channels, out = kernel.shape
    patches = _patches(x, size, stride, padding)
    flat = product(patches.reshape(-1, size * size * channels), kernel.reshape(-1, out))
    return flat.reshape(*patches.shape[:3], out)


def im2col(x: jax.Array, kernel: jax.Array, *, stride: int, padding: str) -> jax.Array:
    """Convolution as one product of the patches and the kernel."""
    return _im2col(jnp.matmul, x, kernel, stride=stride, padding=padding)


@jax.custom_vjp
def _rounded_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of two matrices after rounding to bfloat16, added up in float32; its gradient has such products."""
    return _rounded_forward(a, b)[0]


def _rounded_forward(a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return _product(a, b, jnp.float32), (a, b)


def _rounded_backward(factors: tuple[jax.Array, jax.Array], change: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradients of both factors; that of the patches is stored in bfloat16, as they are."""
    a, b = factors
    change = change.astype(jnp.bfloat16)
    return _product(change, b.T, jnp.bfloat16).astype(jnp.float32), _product(a.T, change, jnp.float32)


def _product(a: jax.Array, b: jax.Array, result: jnp.dtype) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.DEFAULT, preferred_element_type=result)


_rounded_product.defvjp(_rounded_forward, _rounded_backward)


def bfloat16(x: jax.Array, kernel: jax.Array, *, stride: int, padding: str) -> jax.Array:
    """`im2col` with patches and kernel in bfloat16 and sums in float32: half the bytes, 8 bits of precision."""
    return _im2col(_rounded_product, x, kernel, stride=stride, padding=padding)


def checkpointed(x: jax.Array, kernel: jax.Array, *, stride: int, padding: str) -> jax.Array:
    """`im2col` whose patches are made again for the gradient instead of stored."""
    return jax.checkpoint(partial(im2col, stride=stride, padding=padding))(x, kernel)


def _by_xla(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=numbers)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _grouped(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    return _by_xla(x, kernel, stride, padding)


def _grouped_forward(
    x: jax.Array, kernel: jax.Array, stride: int, padding: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _by_xla(x, kernel, stride, padding), (x, kernel)


def _grouped_backward(
    stride: int, padding: str, inputs: tuple[jax.Array, jax.Array], change: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The gradients of the input, by XLA, and of the kernel, by a product with the patches."""
    x, kernel = inputs
    (of_x,) = jax.linear_transpose(lambda x: _by_xla(x, kernel, stride, padding), x)(change)
    patches = _patches(x, kernel.shape[0], stride, padding)
    of_kernel = patches.reshape(-1, patches.shape[-1]).T @ change.reshape(-1, change.shape[-1])
    return of_x, of_kernel.reshape(kernel.shape)


_grouped.defvjp(_grouped_forward, _grouped_backward)


def grouped(x: jax.Array, kernel: jax.Array, *, stride: int, padding: str) -> jax.Array:
    """XLA's convolution, and `im2col` for the gradient of the kernel.

    Under `vmap` over kernels it is one grouped convolution. XLA would compute the kernel's gradient as a convolution
    whose window is the whole image. It has no forward derivative (`jax.jvp`).
    """
    return _grouped(x, kernel, stride, padding)


VARIANTS = {"im2col": im2col, "grouped": grouped, "bfloat16": bfloat16, "checkpointed": checkpointed}


@partial(jax.jit, static_argnames=("stride", "padding"))  # equal layers of a network are traced once
def conv2d(x: jax.Array, kernel: jax.Array, *, stride: int = 1, padding: str = "SAME") -> jax.Array:
    """Convolution of `x [B, H, W, C]` with `kernel [k, k, C, out]`; equals `lax.conv_general_dilated` (NHWC, HWIO).

    The way is chosen when the program is lowered, by the platform that it is lowered for. With the precision 'bfloat16'
    (see `fl.setup`) the patches are bfloat16, except on a CPU.

    Example:
      >>> conv2d(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)))[0, 1, :, 0].tolist()
      [6.0, 9.0, 9.0, 6.0]
    """
    how = {"stride": stride, "padding": padding}
    elsewhere = "bfloat16" if jax.config.jax_default_matmul_precision == PRECISIONS["bfloat16"] else "im2col"
    cuda = elsewhere if ON_CUDA == "im2col" or kernel.shape[0] == 1 else ON_CUDA  # a 1x1 kernel has no patches to save
    cpu = partial(im2col, **how)
    if stride == 1 and winograd.pays(x.shape, kernel.shape):
        cpu = partial(winograd.conv2d, padding=padding)
    branches = {} if cuda == elsewhere else {"cuda": partial(VARIANTS[cuda], **how)}
    if cpu.func is not VARIANTS[elsewhere]:
        branches["cpu"] = cpu
    default = partial(VARIANTS[elsewhere], **how)
    return jax.lax.platform_dependent(x, kernel, **branches, default=default) if branches else default(x, kernel)
