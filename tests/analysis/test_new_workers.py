"""New workers: their rows are divided again, phi is given, and only their heads are trained."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from helpers import KEY, blobs, init

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.analysis.new_workers import redeal, representation_of, with_fresh_heads
from fedlab_lite.data import federated
from fedlab_lite.engine import evaluate


def rows_of(x, size):
    return sorted(row.tobytes() for rows, n in zip(np.asarray(x), size, strict=True) for row in rows[:n])


def test_rows_are_divided_again_and_none_is_lost():
    data = federated("digits", partition="iid", num_clients=6, train_size=300, test_size=120)
    anew = redeal(data, 0.2, seed=1)
    assert rows_of(anew.x, anew.size) == rows_of(data.x, data.size)
    assert rows_of(anew.test_x, anew.test_size) == rows_of(data.test_x, data.test_size)
    assert anew.size.std() > data.size.std()
    assert anew.fingerprint() == redeal(data, 0.2, seed=1).fingerprint()
    assert anew.fingerprint() != redeal(data, 0.2, seed=2).fingerprint()


def test_phi_is_the_mean_of_what_workers_are_judged_with():
    problem = blobs(num_clients=3, sizes=[9, 6, 7])
    algorithm = make_algorithm("deprl")
    state = init(algorithm, problem)
    state["thetas"] = jax.tree.map(
        lambda leaf: leaf + jnp.arange(3.0).reshape(3, *[1] * (leaf.ndim - 1)), state["thetas"]
    )
    phi = representation_of(problem, algorithm, state, KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[1], atol=1e-6), phi, state["thetas"])
    fedavg = make_algorithm("fedavg")
    state = init(fedavg, problem)
    assert representation_of(problem, fedavg, state, KEY) is state["params"]["representation"]


def test_a_head_learns_on_a_phi_that_is_good_for_it():
    """Features that tell the classes apart against features that are all the same."""
    problem = blobs(num_clients=4, sizes=[30] * 4, depth=0, features=8)
    seen, unseen = problem.data.split(2)
    phi = problem.model.init(KEY)["representation"]
    options = {"lr": 0.3, "batch_size": 10, "epochs": 20}
    there = replace(problem, data=seen)
    good = with_fresh_heads(there, unseen, phi, KEY, **options)
    blind = with_fresh_heads(there, unseen, jax.tree.map(jnp.zeros_like, phi), KEY, **options)
    assert good.shape == blind.shape == (2,)
    assert good.mean() > 0.8
    assert good.mean() > blind.mean() + 0.2
    np.testing.assert_array_equal(good, with_fresh_heads(there, unseen, phi, KEY, **options))


def test_a_fresh_head_makes_as_many_passes_as_asked():
    """After none it is the head that was drawn."""
    problem = blobs(num_clients=3, sizes=[30] * 3, depth=0, features=8)
    params = problem.model.init(jax.random.split(KEY)[0])
    options = {"lr": 0.3, "batch_size": 10}
    untrained = with_fresh_heads(problem, problem.data, params["representation"], KEY, epochs=0, **options)
    np.testing.assert_array_equal(untrained, evaluate(problem, {}, params)["accuracy"])
    one, many = (
        with_fresh_heads(problem, problem.data, params["representation"], KEY, epochs=epochs, **options)
        for epochs in (1, 30)
    )
    assert untrained.mean() < one.mean() < many.mean()
