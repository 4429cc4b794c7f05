"""Convolution with fewer multiplications on a CPU: Winograd's minimal filtering F(m, r).

m outputs of a correlation with r taps need m + r - 1 multiplications instead of m r (Winograd 1980; Lavin & Gray 2016,
arXiv:1509.09308, Sec. 4): d inputs -> B^T d, taps g -> G g, outputs A^T ((G g) * (B^T d)). Nested over both axes, a
3x3 kernel makes 4x4 outputs with 36 products instead of 144. Its input grows 36 / 16 = 2.25 times; the patch matrix of
im2col grows 9 times. The products of all tiles, over channels, are 36 matrix products.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

OUTPUTS = {3: 4, 5: 2}  # m by kernel size: six points each, an error near 1e-5 of the largest output in float32
POINTS = (0, 1, -1, 2, -2)  # and infinity
BLOCK_BYTES = 2.5e6  # of transformed samples taken at once: about what fits into one core's cache


@lru_cache
def matrices(outputs: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices B^T `[n, n]`, G `[n, size]` and A^T `[outputs, n]` of F(outputs, size), after Toom and Cook.

    Here n = outputs + size - 1.

    >>> BT, G, AT = matrices(2, 3)
    >>> AT @ ((G @ [1, 10, 100]) * (BT @ [1, 2, 3, 4]))  # 1 + 20 + 300, 2 + 30 + 400
    array([321., 432.])
    """
    n = outputs + size - 1
    points = POINTS[: n - 1]
    BT, G, AT = np.zeros((n, n)), np.zeros((n, size)), np.zeros((outputs, n))
    for i, point in enumerate(points):
        others = [other for other in points if other != point]
        BT[i, :-1] = np.poly(others)[::-1]
        G[i] = np.power(float(point), np.arange(size)) / np.prod([point - other for other in others])
        AT[:, i] = np.power(float(point), np.arange(outputs))
    BT[-1], G[-1, -1], AT[-1, -1] = np.poly(points)[::-1], 1, 1
    return BT, G, AT


def _combine(matrix: np.ndarray, parts: list[jax.Array], axis: int) -> jax.Array:
    """The product matrix @ parts, stacked on `axis`, as sums and constant multiples that XLA fuses into one pass."""
    rows = [sum(float(c) * part for c, part in zip(row, parts, strict=True) if c) for row in matrix]
    return jnp.stack(rows, axis)


def unstack(x: jax.Array, axis: int) -> list[jax.Array]:
    """The slices of an axis.

    They come from `split`, whose gradient is one concatenation. The gradient of indexing is one pad per slice.
    """
    return [part.squeeze(axis) for part in jax.lax.split(x, [1] * x.shape[axis], axis)]


def _tiles(x: jax.Array, BT: np.ndarray, axis: int, count: int) -> jax.Array:
    """Apply B^T to the `count` overlapping tiles on `axis` of `x [..., tiles, m, ...]`; the n values come first."""
    parts = unstack(x, axis + 1)
    outputs = len(parts)

    def entry(a):
        return jax.lax.slice_in_dim(parts[a % outputs], a // outputs, a // outputs + count, axis=axis)

    return _combine(BT, [entry(a) for a in range(len(BT))], 0)


def pays(x_shape: tuple[int, ...], kernel_shape: tuple[int, ...]) -> bool:
    """Whether `conv2d` here is faster than im2col for `x [B, H, W, C]` and `kernel [k, k, C, out]`, stride 1, on a CPU.

    It is for 3x3 and 5x5, with enough channels to fill a vector and enough pixels to repay the transformed kernel.
    (It is not used on an accelerator: float32 products lose digits there, and the transforms would magnify the error.)
    """
    (batch, height, width, _), (size, _, channels, out) = x_shape, kernel_shape
    enough = min(channels, out) >= 16 and batch * height * width >= 512
    return enough and size in OUTPUTS


def conv2d(x: jax.Array, kernel: jax.Array, *, padding: str = "SAME") -> jax.Array:
    """Compute `convolution.conv2d` at stride 1 with a kernel of 3x3 or 5x5.

    Samples are taken in blocks that fit into one core's cache. The transformed input is computed again for the gradient
    instead of stored. JAX derives the gradient itself: every step is a sum, a slice or a matrix product.
    """
    size, _, channels, out = kernel.shape
    m = OUTPUTS[size]
    BT, G, AT = matrices(m, size)
    n = len(BT)
    batch, height, width, _ = x.shape
    before = (size - 1) // 2 if padding == "SAME" else 0
    height, width = (length if padding == "SAME" else length - size + 1 for length in (height, width))
    rows, columns = -(-height // m), -(-width // m)
    more = -(-n // m) - 1  # further tiles that the last one overlaps

    by_row = _combine(G, unstack(kernel, 0), 0)
    weights = _combine(G, unstack(by_row, 1), 0).reshape(n * n, channels, out)

    def block(x, weights):
        ends = [(count + more) * m - before - size for count, size in zip((rows, columns), x.shape[1:3], strict=True)]
        x = jnp.pad(x, [(0, 0), (before, ends[0]), (before, ends[1]), (0, 0)])
        tiles = x.reshape(-1, rows + more, m, columns + more, m, channels)
        tiles = _tiles(_tiles(tiles, BT, 1, rows), BT, 3, columns)
        products = tiles.reshape(n * n, -1, channels) @ weights
        products = products.reshape(n, n, -1, rows, columns, out)
        y = _combine(AT, unstack(_combine(AT, unstack(products, 0), 4), 0), 2)
        return y.reshape(-1, rows * m, columns * m, out)[:, :height, :width]

    at_once = max(1, round(BLOCK_BYTES / (4 * n * n * rows * columns * (channels + out))))
    blocks = -(-batch // at_once)
    at_once = -(-batch // blocks)
    x = jnp.pad(x, [(0, blocks * at_once - batch), (0, 0), (0, 0), (0, 0)]).reshape(blocks, at_once, *x.shape[1:])
    y = jax.lax.map(lambda x: jax.checkpoint(block)(x, weights), x)
    return y.reshape(-1, height, width, out)[:batch]
