"""Rounds as they are lowered for CUDA, read without a GPU; compiled where JAX's CUDA plugin is installed.

For the latter, FEDLAB_CUDA_TARGET names a file that describes the card: XLA's `GpuTargetConfigProto` as text. XLA's
source has some in `backends/gpu/target_config/specs`.
"""

import importlib.util
import math
import os
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import KEY
from jax.experimental.compilation_cache import compilation_cache
from jax.extend.core import jaxpr_as_fun

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.data import Federated
from fedlab_lite.engine import Problem
from fedlab_lite.engine.devices import mesh, replicated
from fedlab_lite.nn import make_model

TO_HOST = r"callback|SendToHost|RecvFromHost|outfeed|infeed"  # what would stop a round until the host has answered
CLIENTS, BATCH = 3, 4
GREY, TEXT = (28, 28, 1), (16,)
FAMILIES = {  # model, input, options; entries per row of the widest layer's patches, or of its outputs
    "mlp": ("mlp", GREY, {"width": 8, "depth": 1}, 784),
    "cnn": ("cnn", GREY, {"channels": (2, 3), "features": 8}, 28 * 28 * 25),
    "resnet": ("resnet20", GREY, {"width": 8}, 28 * 28 * 9 * 8),
    "deq": ("deq_resnet_s", GREY, {"channels": 8}, 14 * 14 * 9 * 16),
    "transformer": ("transformer8", TEXT, {"width": 8, "heads": 2}, 16 * 32 * 8),
}
PAPER = {  # clients in a batch, rows of each, rows of a step; kernels of a step at most
    "mlp": (10, 320, 10, {}, 60),
    "cnn": (10, 160, 32, {}, 60),
    "resnet": (10, 320, 10, {}, 500),
    "deq": (10, 320, 10, {}, 150),
    "transformer": (20, 320, 16, {}, 200),
}
MEMORY = 58e9  # bytes for temporary arrays, on a card of 80 GB with data, states and libraries


def traced(family, clients, rows, batch_size, options):
    """One round of FedAvg with all clients in a batch, traced."""
    name, shape, _, _ = FAMILIES[family]
    text = shape is TEXT
    x = np.zeros((rows, *shape), np.int32 if text else np.uint8)
    each = [(x, np.ones((rows, *shape) if text else rows, np.int32))] * clients
    task = "next_character" if text else "classification"
    data = Federated.stack(each, each, name="zeros", source="zeros", num_classes=90 if text else 62, task=task)
    problem = Problem(data, make_model(name, shape, data.num_classes, **options), executor="vmap")
    algorithm = make_algorithm("fedavg", batch_size=batch_size, epochs=2)
    state = jax.eval_shape(algorithm.init, problem, KEY)
    return jax.jit(algorithm.round).trace(problem, state, problem.everyone(KEY))


def flat(round_, sharding=None):
    """A traced round again, with its arguments in a list, all of them with this sharding."""
    there = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding) for each in round_.jaxpr.in_avals]
    return jax.jit(jaxpr_as_fun(round_.jaxpr)).trace(*there)


def widest(text):
    """The largest number of entries of a float array in a lowered program."""
    shapes = re.findall(r"tensor<((?:\d+x)+)f32>", text)
    return max(math.prod(map(int, shape.rstrip("x").split("x"))) for shape in shapes)


@pytest.mark.parametrize(
    "family", ["mlp", "cnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet", "deq", "transformer"))]
)
def test_a_round_lowered_for_cuda(family):
    """It never asks the host for anything; no array is wider than a step's patches, or all clients' params."""
    _, _, options, patches = FAMILIES[family]
    round_ = traced(family, CLIENTS, 2 * BATCH, BATCH, options)
    text = flat(round_).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.while" in text
    assert not re.search(TO_HOST, text)
    slots = -(-CLIENTS // mesh().size)  # of a device
    largest_param = max(leaf.size for leaf in jax.tree.leaves(round_.out_info))
    assert widest(text) <= max(slots * BATCH * patches, slots * mesh().size * largest_param)


def test_a_call_of_the_host_would_be_found():
    """On a CPU, because JAX lowers such a call only for devices that it has."""

    def asks(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x)

    assert re.search(TO_HOST, jax.jit(asks).trace(np.float32(1)).lower().as_text())


def cuda_device():
    """A device of the described card, which need not be there; skips where it cannot be compiled for."""
    plugins = [name for name in ("jax_cuda13_plugin", "jax_cuda12_plugin") if importlib.util.find_spec(name)]
    target = os.environ.get("FEDLAB_CUDA_TARGET")
    if not plugins or not target:
        pytest.skip("needs JAX's CUDA plugin, and FEDLAB_CUDA_TARGET: a file with XLA's description of a card")
    from jax.experimental import topologies

    config = {"target_config": Path(target).read_text(), "topology": "1x1x1"}
    return topologies.get_topology_desc(platform="cuda", **config).devices[0]


def kernels_of_a_step(text):
    """The largest number of kernels in the body of a loop of a compiled program: fusions, products, convolutions."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    counts, inside = {}, None
    for line in text.splitlines():
        if start := re.match(r"%?([\w.\-]+) .*\{$", line):
            inside = start.group(1)
        elif inside in bodies and re.search(r" (fusion|custom-call|dot|convolution|sort|copy|reduce|scatter)\(", line):
            counts[inside] = counts.get(inside, 0) + 1
    return max(counts.values())


def forget_programs(*, keep_new):
    jax.config.update("jax_enable_compilation_cache", keep_new)
    compilation_cache.reset_cache()
    jax.clear_caches()


@pytest.fixture
def card(monkeypatch):
    """Everything is placed on one device of the described card, in programs that are traced anew.

    They are not kept: without a GPU, JAX can write its cache for CUDA, but not read it.
    """
    one = jax.make_mesh((1,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,), devices=[cuda_device()])
    for module in ("devices", "clients", "groups", "problem"):
        monkeypatch.setattr(f"fedlab_lite.engine.{module}.mesh", lambda: one)
    before = jax.config.jax_enable_compilation_cache
    forget_programs(keep_new=False)
    yield replicated()
    forget_programs(keep_new=before)


@pytest.mark.slow
@pytest.mark.parametrize("family", PAPER)
def test_a_round_compiled_for_cuda(card, family):
    clients, rows, batch_size, options, most = PAPER[family]
    compiled = flat(traced(family, clients, rows, batch_size, options), card).lower().compile()
    assert compiled.memory_analysis().temp_size_in_bytes < MEMORY
    assert not re.search(TO_HOST, compiled.as_text())
    assert kernels_of_a_step(compiled.as_text()) <= most


def test_kernels_are_counted_in_the_bodies_of_loops():
    text = """
ENTRY %main (x: f32[2]) -> f32[2] {
  %while.1 = f32[2] while(%x), condition=%cond.1, body=%body.1
}
%body.1 (x: f32[2]) -> f32[2] {
  %a = f32[2] fusion(%x), kind=kLoop
  %b = f32[2] custom-call(%a)
  %c = f32[2] bitcast(%b)
}
%other (x: f32[2]) -> f32[2] {
  %a = f32[2] fusion(%x), kind=kLoop
  %b = f32[2] fusion(%x), kind=kLoop
  %c = f32[2] fusion(%x), kind=kLoop
}
"""
    assert kernels_of_a_step(text) == 2
