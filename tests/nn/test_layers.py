"""Convolution, pooling and normalisation against JAX's and Flax's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedlab_lite.nn import conv2d, winograd
from fedlab_lite.nn.layers import Conv, GroupNorm, as_float, dense, layer_norm, max_pool, softplus

KEY = jax.random.key(0)


def lax_conv(x, kernel, stride, padding):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [(1, 1, "SAME"), (1, 2, "SAME"), (2, 3, "SAME"), (3, 1, "SAME"), (3, 2, "SAME"), (5, 1, "VALID"), (5, 2, "VALID")],
)
def test_conv_equals_lax_and_so_does_its_gradient(size, stride, padding):
    x = jax.random.normal(KEY, (2, 9, 8, 3))
    kernel = jax.random.normal(jax.random.fold_in(KEY, 1), (size, size, 3, 4))
    ours = conv2d(x, kernel, stride=stride, padding=padding)
    theirs = lax_conv(x, kernel, stride, padding)
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)

    weight = jax.random.normal(jax.random.fold_in(KEY, 2), ours.shape)
    got = jax.grad(lambda x, k: jnp.vdot(conv2d(x, k, stride=stride, padding=padding), weight), (0, 1))(x, kernel)
    want = jax.grad(lambda x, k: jnp.vdot(lax_conv(x, k, stride, padding), weight), (0, 1))(x, kernel)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize(("size", "height", "batch"), [(3, 11, 50), (3, 4, 40), (5, 9, 30), (5, 6, 21)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_winograd_equals_lax_and_so_does_its_gradient(size, height, batch, padding):
    """At sizes that are no multiple of a tile, batches that are no multiple of a block, and in forward mode."""
    x = jax.random.normal(KEY, (batch, height, 12, 16))
    kernel = jax.random.normal(jax.random.fold_in(KEY, 1), (size, size, 16, 17)) / size
    assert winograd.pays(x.shape, kernel.shape)
    tangents = jax.random.normal(jax.random.fold_in(KEY, 2), x.shape), kernel[::-1]

    def value_and_gradient(conv):
        out, moved = jax.jvp(conv, (x, kernel), tangents)
        weight = jnp.sin(jnp.arange(out.size)).reshape(out.shape)
        return out, moved, jax.grad(lambda x, k: jnp.vdot(conv(x, k), weight), (0, 1))(x, kernel)

    ours = jax.jit(lambda: value_and_gradient(lambda x, k: conv2d(x, k, padding=padding)))()
    theirs = jax.jit(lambda: value_and_gradient(lambda x, k: lax_conv(x, k, 1, padding)))()
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5 * float(jnp.abs(b).max()), rtol=0)


@pytest.mark.parametrize("outputs", [2, 3, 4])
@pytest.mark.parametrize("size", [2, 3])
def test_minimal_filtering_is_exact(outputs, size):
    """A^T ((G g) * (B^T d)) is the correlation, with m + r - 1 products, for any data."""
    BT, G, AT = winograd.matrices(outputs, size)
    d, g = np.random.default_rng(0).normal(size=(2, outputs + size - 1))
    assert BT.shape == (outputs + size - 1,) * 2
    np.testing.assert_allclose(AT @ ((G @ g[:size]) * (BT @ d)), np.correlate(d, g[:size]), rtol=1e-10, atol=1e-10)


def test_conv_under_vmap_over_weights_and_inside_map():
    for channels, batch in (3, 2), (16, 8):  # im2col; Winograd
        x = jax.random.normal(KEY, (3, batch, 8, 8, channels))
        kernels = jax.random.normal(KEY, (3, 3, 3, channels, 16)) / channels
        want = jnp.stack([lax_conv(x[i], kernels[i], 1, "SAME") for i in range(3)])
        np.testing.assert_allclose(jax.vmap(conv2d)(x, kernels), want, atol=2e-5)
        np.testing.assert_allclose(jax.lax.map(lambda a: conv2d(*a), (x, kernels)), want, atol=2e-5)


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(2, 2, "VALID"), (3, 2, "SAME"), (3, 1, "SAME"), (3, 2, "VALID")]
)
def test_max_pool_equals_flax_and_so_does_its_gradient(size, stride, padding):
    x = jax.random.normal(KEY, (2, 9, 7, 3))

    def theirs(x):
        return nnx.max_pool(x, (size, size), (stride, stride), padding)

    def ours(x):
        return max_pool(x, size, stride, padding)

    np.testing.assert_array_equal(ours(x), theirs(x))
    got, want = (jax.grad(lambda x, f=f: jnp.sum(f(x) ** 2))(x) for f in (ours, theirs))
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2)])
def test_max_pool_shows_nan_and_sends_the_gradient_to_one_of_equals(size, stride):
    for place in range(size):
        x = jnp.zeros((1, size, size, 1)).at[0, place, -1 - place].set(jnp.nan)
        assert jnp.isnan(max_pool(x, size, stride)).all()
    gradient = jax.grad(lambda x: max_pool(x, size, stride).sum())(jnp.ones((1, size, size, 1)))
    assert sorted(np.unique(gradient)) == [0, 1]
    assert gradient.sum() == 1


def test_group_norm_equals_flax():
    x = jax.random.normal(KEY, (4, 6, 5, 16)) * 3 + 1
    ours = GroupNorm(16, groups=4)
    theirs = nnx.GroupNorm(16, num_groups=4, epsilon=1e-5, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(ours(x), theirs(x), atol=2e-6)
    flat = x[:, 0, 0]
    layer = nnx.LayerNorm(16, epsilon=1e-5, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(GroupNorm(16, groups=1)(flat), layer(flat), atol=2e-6)


def test_layer_norm_equals_flax():
    x = jax.random.normal(KEY, (4, 5, 16)) * 3 + 1
    layer = nnx.LayerNorm(16, epsilon=1e-5, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(layer_norm(x, jnp.full(16, 2.0), jnp.ones(16)), 2 * layer(x) + 1, atol=1e-5)


def test_dense_is_a_product_over_the_last_axis():
    x, kernel = jax.random.normal(KEY, (4, 5, 6)), jax.random.normal(KEY, (6, 3))
    np.testing.assert_allclose(dense(x, kernel, jnp.arange(3.0)), x @ kernel + jnp.arange(3.0), atol=1e-5)


def test_softplus_equals_jax_and_so_does_its_gradient():
    x = jnp.linspace(-40, 40, 4001)
    np.testing.assert_allclose(softplus(x), jax.nn.softplus(x), atol=1e-6, rtol=1e-6)
    got, want = (jax.vmap(jax.grad(f))(x) for f in (softplus, jax.nn.softplus))
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_group_norm_ignores_the_rest_of_the_batch():
    x = jax.random.normal(KEY, (4, 6, 6, 8))
    alone = GroupNorm(8)(x[:1])
    np.testing.assert_allclose(GroupNorm(8)(x)[:1], alone, atol=1e-6)


def test_conv_module_bias_and_kernel_shape():
    conv = Conv(3, 5, 3, use_bias=True, rngs=nnx.Rngs(0))
    conv.bias[...] = jnp.arange(5.0)
    assert conv.kernel.shape == (3, 3, 3, 5)
    np.testing.assert_allclose(conv(jnp.zeros((1, 4, 4, 3)))[0, 0, 0], np.arange(5.0))


def test_pixels_are_scaled_once():
    np.testing.assert_allclose(as_float(jnp.array([0, 255], jnp.uint8)), [0.0, 1.0])
    np.testing.assert_allclose(as_float(jnp.array([0.0, 255.0])), [0.0, 255.0])
