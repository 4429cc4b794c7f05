"""Work is counted as it is done: products by hand, loops by their bounds, padding apart, and against programs."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.data import federated
from fedlab_lite.engine import Problem
from fedlab_lite.engine.groups import judging_step, training_step
from fedlab_lite.engine.work import work_of
from fedlab_lite.nn import make_model


def shapes(*size):
    return jax.ShapeDtypeStruct(size, jnp.float32)


def test_products_by_hand():
    assert work_of(jnp.matmul, shapes(3, 4), shapes(4, 5)).flops == 2 * 3 * 4 * 5
    batched = work_of(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), shapes(7, 3, 4), shapes(7, 4, 5))
    assert batched.flops == 7 * 2 * 3 * 4 * 5
    assert batched.bytes == 4 * 7 * (3 * 4 + 4 * 5 + 3 * 5)


def test_a_convolution_by_hand():
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert work_of(convolve, shapes(2, 8, 8, 3), shapes(5, 5, 3, 6)).flops == 2 * (2 * 8 * 8 * 6) * (5 * 5 * 3)


def ragged(x, bounds):
    """One loop per client, each as long as its bound."""
    return jax.vmap(lambda bound: jax.lax.fori_loop(0, bound, lambda _, y: y @ x, x))(bounds)


def test_a_batch_of_loops_takes_as_long_as_its_longest():
    one, bounds = 2 * 4**3, np.array([3, 1, 8])
    work = work_of(ragged, shapes(4, 4), bounds)
    assert (work.flops, work.useful, work.steps) == (3 * 8 * one, (3 + 1 + 8) * one, 8)
    apart = work_of(lambda x, n: jax.lax.map(lambda bound: ragged(x, bound[None]), n), shapes(4, 4), bounds)
    assert (apart.flops, apart.useful, apart.steps) == (12 * one, 12 * one, 12)


def test_a_loop_of_unknown_length_is_an_error():
    def until_large(x):
        return jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y @ y, x)

    with pytest.raises(ValueError, match="not known"):
        work_of(until_large, shapes(4, 4))


def test_memory_at_the_peak():
    """Two results of a megabyte are alive at the same time, not three."""
    million = shapes(250_000)
    assert work_of(lambda x: jnp.sin(jnp.cos(jnp.exp(x))).sum(), million).memory == pytest.approx(2e6, rel=0.01)


def products(text):
    """The operations in products of a program, from XLA's text; a loop runs as often as its condition's constant."""
    blocks = dict(re.findall(r"^(?:ENTRY )?([\w.]+) \{\n(.*?)^\}", text, re.M | re.S))
    dot = r"= \w+\[([\d,]*)\]\S* dot\(([\w.-]+), .*lhs_contracting_dims=\{([\d,]*)\}"

    def sizes(dims):
        return [int(size) for size in dims.split(",") if size]

    @functools.cache
    def of(name):
        block = blocks[name]
        shapes = dict(re.findall(r"^ *(?:ROOT )?([\w.-]+) = \w+\[([\d,]*)\]", block, re.M))
        total = 0
        for out, left, axes in re.findall(dot, block):
            total += 2 * math.prod(sizes(out)) * math.prod(sizes(shapes[left])[axis] for axis in sizes(axes))
        for condition, body in re.findall(r"condition=([\w.]+), body=([\w.]+)", block):
            total += of(body) and of(body) * max(map(int, re.findall(r"s32\[\] constant\((\d+)\)", blocks[condition])))
        for branches in re.findall(r"branch_computations=\{(.*?)\}", block):
            total += max(map(of, branches.split(", ")))
        return total + sum(map(of, re.findall(r" call\(.*to_apply=([\w.]+)", block)))

    return of(re.search(r"^ENTRY ([\w.]+)", text, re.M).group(1))


IMAGE, TEXT = (28, 28, 1), (16,)
NETWORKS = {  # input, options
    "mlp": (IMAGE, {}),
    "cnn": (IMAGE, {}),
    "cnn5": (IMAGE, {}),
    "norm_cnn": (IMAGE, {}),
    "alexnet_small": (IMAGE, {}),
    "vgg11": ((32, 32, 3), {"width": 8}),
    "resnet20": (IMAGE, {"width": 8}),
    "resnet18": ((32, 32, 3), {"width": 8}),
    "fl_resnet": ((32, 32, 3), {}),
    "dnn": ((900,), {}),
    "transformer8": (TEXT, {"width": 16, "heads": 2}),
    "deq_resnet_s": (IMAGE, {"channels": 8}),
    "deq_mlp": (IMAGE, {"width": 16}),
    "fl_deq_cnn": (IMAGE, {}),
}


def both(name, shape, options):
    """The operations of a network as we count them, and those of the program for a GPU, which has no Winograd."""
    model = make_model(name, shape, 10, **options)
    x = jax.ShapeDtypeStruct((4, *shape), jnp.int32 if shape is TEXT else jnp.float32)
    params = jax.eval_shape(model.init, KEY)
    program = jax.jit(model.apply).trace(params, x).lower(lowering_platforms=("cuda",))
    return work_of(model.apply, params, x).flops, products(program.as_text(dialect="hlo"))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_family_of_networks_against_its_program(name):
    ours, program = both(name, *NETWORKS[name])
    assert ours == pytest.approx(program, rel=0.02)


def problem(executor="map", clients=6, **options):
    data = federated("digits", partition="dirichlet", alpha=0.3, num_clients=clients, train_size=30 * clients)
    return Problem(data, make_model("mlp", data.input_shape, 10, width=8, depth=1), executor=executor, **options)


def round_work(of, algorithm, at_once=None):
    state = jax.eval_shape(algorithm.init, of, KEY)

    def one_round(algorithm, of, state, cohort, key):
        return algorithm.round(of, state, of.at(0, cohort, key))

    return work_of(one_round, algorithm, of, state, np.arange(of.num_clients), KEY)


def test_a_round_by_hand():
    """Clients one after the other take ceil(rows / batch) steps a pass; in a batch, as many as the largest."""
    algorithm = make_algorithm("fedavg", epochs=2, batch_size=10)
    one_by_one, together = (round_work(problem(executor), algorithm) for executor in ("map", "vmap"))
    steps = 2 * -(-problem().data.size // 10)
    step = training_step(problem(), 10).flops
    average = one_by_one.flops - steps.sum() * step
    assert 0 <= average < 0.05 * one_by_one.flops  # what the server adds up
    assert together.flops == pytest.approx(6 * steps.max() * step + average)
    assert together.useful == pytest.approx(one_by_one.flops)
    assert judging_step(problem()).flops < 100 / 10 * step
