"""The variants of a convolution: each equals JAX's own, with its gradients; and which one a program is lowered with."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.nn import convolution
from fedlab_lite.nn.convolution import VARIANTS
from fedlab_lite.util.jax_setup import PRECISIONS

KEY = jax.random.key(0)
LARGEST_ERROR = {"bfloat16": 2e-2}  # of the largest entry; 1e-4 for the others
SHAPES = [(1, 2, "SAME"), (3, 1, "SAME"), (3, 2, "SAME"), (5, 1, "VALID"), (5, 2, "VALID")]


def inputs(size, *, clients=()):
    x = jax.random.normal(KEY, (*clients, 2, 9, 8, 3))
    return x, jax.random.normal(jax.random.fold_in(KEY, 1), (*clients, size, size, 3, 4))


def by_jax(x, kernel, *, stride, padding):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=numbers)


def with_gradients(conv, x, kernel):
    """The result, and the gradients by input and kernel of a weighted sum of it."""
    result, pull_back = jax.vjp(conv, x, kernel)
    return result, *pull_back(jnp.cos(jnp.arange(result.size, dtype=jnp.float32)).reshape(result.shape))


def assert_close(found, wanted, error):
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=error * float(jnp.abs(b).max()))


@pytest.mark.parametrize(("size", "stride", "padding"), SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_equals_jax_and_so_do_its_gradients(variant, size, stride, padding):
    how, error = {"stride": stride, "padding": padding}, LARGEST_ERROR.get(variant, 1e-4)
    ours, theirs = (
        jax.jit(partial(with_gradients, partial(conv, **how)))(*inputs(size)) for conv in (VARIANTS[variant], by_jax)
    )
    assert_close(ours, theirs, error)


@pytest.mark.parametrize(("stride", "padding"), [(1, "SAME"), (2, "VALID")])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_under_vmap_over_kernels(variant, stride, padding):
    """As clients are batched; the loop over clients is the comparison."""
    how, error = {"stride": stride, "padding": padding}, LARGEST_ERROR.get(variant, 1e-4)
    x, kernels = inputs(3, clients=(3,))
    ours = jax.jit(jax.vmap(partial(with_gradients, partial(VARIANTS[variant], **how))))(x, kernels)
    one = jax.jit(partial(with_gradients, partial(by_jax, **how)))
    each = [one(*client) for client in zip(x, kernels, strict=True)]
    assert_close(ours, [jnp.stack(parts) for parts in zip(*each, strict=True)], error)


def test_a_checkpointed_convolution_stores_no_patches():
    x, kernel = inputs(5)

    def stored(variant):
        conv = partial(VARIANTS[variant], stride=1, padding="SAME")
        return {leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda x, k: jax.vjp(conv, x, k)[1], x, kernel))}

    patches = x.size * 25
    assert patches in stored("im2col")
    assert max(stored("checkpointed")) < patches
    assert max(stored("grouped")) < patches


def gradients_traced(x, kernels):
    """`conv2d` and its gradients under `vmap`, traced anew."""
    return jax.jit(jax.vmap(partial(with_gradients, convolution.conv2d.__wrapped__))).trace(x, kernels)


def lowered(platform, size=3):
    """The program for a platform that need not be here."""
    x, kernels = inputs(size, clients=(2,))
    return gradients_traced(x, kernels).lower(lowering_platforms=(platform,)).as_text()


MARKS = {  # what only the program of this variant has
    "grouped": r"stablehlo\.convolution",
    "bfloat16": r"dot_general.*xbf16",
    "checkpointed": "optimization_barrier",
}


@pytest.mark.parametrize("variant", MARKS)
def test_the_switch_decides_for_cuda_alone(monkeypatch, variant):
    assert not re.search(MARKS[variant], lowered("cuda"))
    monkeypatch.setattr(convolution, "ON_CUDA", variant)
    assert re.search(MARKS[variant], lowered("cuda"))
    assert not re.search(MARKS[variant], lowered("cpu"))


def test_a_kernel_of_one_pixel_stays_a_product(monkeypatch):
    monkeypatch.setattr(convolution, "ON_CUDA", "grouped")
    assert not re.search(MARKS["grouped"], lowered("cuda", size=1))


def test_precision_bfloat16_rounds_the_patches_but_not_on_a_cpu():
    with jax.default_matmul_precision(PRECISIONS["bfloat16"]):
        assert all(re.search(MARKS["bfloat16"], lowered(other)) for other in ("cuda", "rocm"))
        assert not re.search(MARKS["bfloat16"], lowered("cpu"))


def test_a_cpu_computes_the_same_bits_whatever_the_switch(monkeypatch):
    x, kernels = inputs(3, clients=(2,))
    before = gradients_traced(x, kernels).lower().compile()(x, kernels)
    monkeypatch.setattr(convolution, "ON_CUDA", "grouped")
    with jax.default_matmul_precision(PRECISIONS["bfloat16"]):
        after = gradients_traced(x, kernels).lower().compile()(x, kernels)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_winograd_stays_the_choice_of_a_cpu(monkeypatch):
    x, kernel = jax.random.normal(KEY, (8, 8, 8, 16)), jax.random.normal(KEY, (3, 3, 16, 16))
    monkeypatch.setattr(convolution, "ON_CUDA", "grouped")
    chosen = jax.jit(convolution.conv2d.__wrapped__)(x, kernel)
    np.testing.assert_array_equal(chosen, jax.jit(convolution.winograd.conv2d)(x, kernel))


def test_without_another_variant_there_is_no_choice_to_trace():
    x, kernel = inputs(3)
    assert "cond" not in str(jax.make_jaxpr(convolution.conv2d)(x, kernel))
