"""Rounds and networks can be lowered for CUDA and TPU on a machine that has neither, from the shapes alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from helpers import KEY, blobs, cohort_of, step
from jax import export

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.engine import Batch, clients, devices, groups, problem
from fedlab_lite.nn import make_model, winograd

pytestmark = pytest.mark.slow

PLATFORMS = ("cuda", "tpu")


def exported(fn, *args, platforms=PLATFORMS):
    """The lowered program; arguments may be arrays or shapes."""
    shapes = jax.eval_shape(lambda *args: args, *args)
    lowered = export.export(jax.jit(lambda *args: fn(*args)), platforms=platforms)(*shapes)
    assert lowered.platforms == platforms
    return lowered


def exported_round(algorithm, of, cohort):
    state = jax.eval_shape(algorithm.init, of, KEY)
    lowered = exported(step, algorithm, of, state, cohort_of(algorithm, of, cohort), KEY)
    assert [(leaf.shape, leaf.dtype) for leaf in lowered.out_avals] == [
        (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)
    ]
    return lowered


@pytest.fixture
def one_device(monkeypatch):
    """A mesh of the first device, for what is traced inside."""
    mesh = jax.make_mesh((1,), ("clients",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    for module in (clients, devices, groups, problem):
        monkeypatch.setattr(module, "mesh", lambda: mesh)
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(("executor", "names"), [("vmap", ALGORITHMS), ("map", ("fedavg", "fedeq", "fedf_admm"))])
def test_every_round_on_one_device(executor, names):
    """With the executor of an accelerator, and some with the other."""
    of = blobs(executor=executor)
    gaussian = blobs(executor=executor, model="gaussian_mlp", width=8, depth=1, features=8, latent=4)
    for name in names:
        assert exported_round(make_algorithm(name), gaussian if name == "fedcr" else of, [0, 2, 3]).nr_devices == 1


@pytest.mark.parametrize("name", ["fedavg", "fedeq", "fedf_admm"])
def test_rounds_on_several_devices(name):
    """Clients are shared out, so rows have to move."""
    of = blobs(num_clients=2 * jax.device_count(), executor="vmap")
    lowered = exported_round(make_algorithm(name), of, [0, 1, 2])
    assert lowered.nr_devices == jax.device_count() > 1
    assert "all_gather" in lowered.mlir_module()


def exported_gradient(model, rows, platforms=PLATFORMS):
    of = replace(blobs(), model=model)
    x = jax.ShapeDtypeStruct((rows, *model.input_shape), jnp.uint8)
    y, weight = jax.ShapeDtypeStruct((rows,), jnp.int32), jax.ShapeDtypeStruct((rows,), jnp.float32)
    params = jax.eval_shape(model.init, KEY)
    return exported(jax.grad(of.loss, has_aux=True), params, Batch(x, y, weight, KEY), platforms=platforms)


@pytest.mark.parametrize("gradient", ["implicit", "one_step"])
@pytest.mark.parametrize("name", ["deq_mlp", "deq_resnet_s"])
def test_equilibrium_networks(name, gradient):
    options = {"width": 16} if name == "deq_mlp" else {"channels": 16}
    exported_gradient(make_model(name, (8, 8, 1), 3, gradient=gradient, **options), 8)


def test_convolutions_are_those_of_the_platform():
    """Winograd's, which a CPU takes here, magnify the rounding of an accelerator's products."""
    model = make_model("cnn", (8, 8, 1), 3, channels=(16, 16), features=8)
    assert winograd.pays((32, 4, 4, 16), (5, 5, 16, 16))

    def products(*platforms):
        lines = exported_gradient(model, 32, platforms).mlir_module().splitlines()
        return "".join(line for line in lines if "dot_general" in line)

    tiles, patches = "tensor<36x16x16xf32>", "tensor<512x400xf32>"  # a kernel's 6 x 6 points; 5 x 5 x 16 at 512 pixels
    on_cpu, on_accelerators = products("cpu"), products(*PLATFORMS)
    assert tiles in on_cpu
    assert patches not in on_cpu
    assert tiles not in on_accelerators
    assert patches in on_accelerators
