"""Fusion rules: eq. (14) of FL-DEQ by hand, on any algorithm that averages, and devices of different strength."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, blobs, init, largest_gap, quadratic_problem, step

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.engine import average, fusion_weights, training
from fedlab_lite.runs import Settings, build_problem, run
from fedlab_lite.util import InputError

SIZE, ITERATIONS = np.array([4, 2, 6]), np.array([3, 10, 10])
TINY = {"dataset": "textures", "partition": "iid", "num_clients": 3, "train_size": 12, "test_size": 6, "num_rounds": 2}
DEQ = {"model": "fl_deq_cnn", "model_options": {"channels": 8, "layers": 1, "pool": 8}, "seeds": (0,)}


@pytest.mark.parametrize(
    ("fusion", "weights"),
    [
        ("samples", [4, 2, 6]),
        ("uniform", [1, 1, 1]),
        ("iterations", [3, 10, 10]),
        ("iterations_samples", [12, 20, 60]),
        ("own", None),
    ],
)
def test_the_rules(fusion, weights):
    got = fusion_weights(fusion, SIZE, ITERATIONS)
    assert (got if got is None else got.tolist()) == weights


def test_the_papers_weak_devices_count_a_sixth():
    """Sec. IV-C: 40 % of 15 devices make 3 iterations, the others 10: 6 * 3 of 108."""
    weights = fusion_weights("iterations", np.full(15, 100), np.array([3] * 6 + [10] * 9))
    assert weights[:6].sum() / weights.sum() == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("fusion", "size", "iterations", "message"),
    [
        ("iteration", [1, 1], [1, 1], "did you mean 'iterations'"),
        ("iterations", [1, 1], [1, 0], "client 1 makes 0 iterations; make it at least 1"),
        ("iterations", [1, 1], [1, 2, 3], "3 numbers of iterations for 2 clients"),
    ],
)
def test_bad_rules(fusion, size, iterations, message):
    with pytest.raises(InputError, match=message):
        fusion_weights(fusion, np.array(size), np.array(iterations))


def test_average():
    stacked = {"w": jnp.array([[1.0, 0.0], [3.0, 4.0]])}
    assert average(stacked, jnp.array([3, 1]))["w"].tolist() == [1.5, 1.0]
    assert jax.jit(average)(stacked, jnp.array([3, 1]))["w"].tolist() == [1.5, 1.0]
    for weights in ([2.0, -1.0], [jnp.nan, 1.0], [jnp.inf, 1.0]):
        with pytest.raises(InputError, match="must be finite and not negative"):
            average(stacked, jnp.array(weights))


def test_average_of_what_counts_for_nothing():
    """A row of weight 0 may hold anything; the mean of nothing is 0."""
    stacked = {"w": jnp.array([[1.0, 0.0], [jnp.nan, jnp.inf]])}
    assert average(stacked, jnp.array([2, 0]))["w"].tolist() == [1.0, 0.0]
    assert average(stacked, jnp.zeros(2))["w"].tolist() == [0.0, 0.0]


def test_average_in_an_order():
    """Rows left out of it, idle places, count for nothing: they have weight 0."""
    stacked, weights = {"w": jnp.array([[1.0], [9.0], [4.0]])}, jnp.array([3.0, 0.0, 1.0])
    assert average(stacked, weights, order=jnp.array([2, 0]))["w"].tolist() == [1.75]


@pytest.mark.parametrize("weight", [1e-30, 1.0, 1e30])
def test_equal_weights_give_equal_bits_however_large(weight):
    stacked = jax.random.normal(KEY, (7, 5))
    np.testing.assert_array_equal(average(stacked, jnp.full(7, weight)), average(stacked, jnp.ones(7)))


def test_fedavg_with_eq_14_by_hand():
    """Two clients pull one weight to 1 and to 5; a step of 0.5 from 0 sends each half-way (theta and w share it)."""
    problem = quadratic_problem([1.0, 5.0], [2, 2])
    problem = replace(problem, weight=jnp.array([3.0, 10.0]))
    algorithm = make_algorithm("fedavg", lr=0.25, epochs=1, batch_size=2)
    state = step(algorithm, problem, init(algorithm, problem), jnp.arange(2))
    want = (3 * 0.25 * 1.0 + 10 * 0.25 * 5.0) / 13
    assert float(state["params"]["head"]["w"]) == pytest.approx(want)
    assert float(state["params"]["representation"]["theta"]) == pytest.approx(want)


AVERAGING = ["fedavg", "fedavg_ft", "ditto", "fedper", "fedrep", "knn_per", "fedeq"]


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGING)
def test_every_algorithm_that_averages_takes_the_weights(name):
    """A client that counts for nothing leaves no trace in what the others share."""
    problem = blobs(sizes=[12, 12, 12])
    algorithm = make_algorithm(name, lr=0.1)
    state = init(algorithm, problem)

    def shared(weight, cohort):
        after = step(algorithm, replace(problem, weight=jnp.array(weight)), state, cohort)
        return after.get("params", after.get("theta"))

    three = jnp.arange(3)
    other, alone = shared([1.0, 1.0, 0.0], three), shared([1.0, 1.0, 5.0], jnp.arange(2))
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, atol=1e-6), other, alone)
    equal, unequal = shared([1.0, 1.0, 1.0], three), shared([9.0, 1.0, 1.0], three)
    assert largest_gap(equal, unequal) > 1e-4


@pytest.mark.slow
def test_devices_of_different_strength_train_in_one_round():
    """Each client's update is the one that a federation of its own strength would give it."""
    mixed = build_problem(Settings(**TINY, **DEQ, budgets=(3, 10, 5)))
    algorithm = make_algorithm("fedavg", lr=0.1, epochs=1)
    params = init(algorithm, mixed)["params"]

    def updates(problem):
        return algorithm.for_cohort(problem, algorithm.client_update, problem.everyone(KEY), shared=(params,))

    together = jax.jit(updates)(mixed)
    for client, budget in enumerate((3, 10, 5)):
        options = DEQ["model_options"] | {"max_iter": budget, "backward_iter": budget}
        alone = jax.jit(updates)(build_problem(Settings(**TINY, **DEQ | {"model_options": options})))
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[client], b[client], atol=1e-5)


@pytest.mark.slow
def test_budgets_and_fusion_are_data_of_one_program():
    """Changing them compiles nothing, and changes the result."""
    base = Settings(**TINY, **DEQ, budgets=(3, 10, 10), fusion="iterations", algorithm_options={"lr": 0.5})
    first = run(base)
    losses = [first.metrics["loss"][0, -1]]
    programs = training._round._cache_size()
    for other in ({"fusion": "uniform"}, {"budgets": (10, 10, 10)}):
        losses.append(run(replace(base, **other)).metrics["loss"][0, -1])
    assert training._round._cache_size() == programs
    assert len({round(float(a), 7) for a in losses}) == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "mlp", "model_options": {}}, "mlp has no solver"),
        ({"budgets": (3, 11, 10)}, "a client's budget is 11 iterations, but fl_deq_cnn makes at most 10; raise"),
        ({"model_options": DEQ["model_options"] | {"tol": 0.01}}, "tol = 0.01 samples stop before"),
    ],
)
def test_budgets_that_do_not_fit(values, message):
    values = {"budgets": (3, 10, 10), "fusion": "iterations"} | values
    with pytest.raises(InputError, match=message):
        build_problem(Settings(**TINY | DEQ | values))


@pytest.mark.slow
def test_newcomers_bring_their_own_budget():
    settings = Settings(**TINY, **DEQ, budgets=(3, 10, 5), unseen_clients=1, fusion="iterations")
    problem = build_problem(settings)
    assert problem.data.budget.tolist() == [3, 5]  # client 1 is drawn as the newcomer
    assert problem.newcomers.budget.tolist() == [10]
    assert problem.weight.tolist() == [3.0, 5.0]
    assert run(settings).metrics["accuracy_unseen"].shape == (1, 3)
