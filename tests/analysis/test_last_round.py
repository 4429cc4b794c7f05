"""The last round of FedReCo's code: heads alone for most methods, by hand; and what is stored of it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import blobs, init, quadratic_problem

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.analysis import after_last_round, last_round
from fedlab_lite.runs import Settings, run_all

SMALL = {"dataset": "digits", "partition": "iid", "num_clients": 3, "train_size": 60, "test_size": 60, "num_rounds": 1}
MODEL = {"model_options": {"width": 8, "depth": 1}}


def test_ten_steps_of_the_head_by_hand():
    """Each full-batch step of 0.25 leaves three quarters of what is missing, and theta stays."""
    problem, algorithm = quadratic_problem((1.0, 5.0), (2, 2)), make_algorithm("fedrep", lr=0.25, batch_size=4)
    own, shared = last_round.tuned(algorithm, problem, init(algorithm, problem))
    np.testing.assert_allclose(own["head"]["w"], np.array([1.0, 5.0]) * (1 - 0.75**10), rtol=1e-5)
    assert shared["representation"]["theta"] == 0


def test_fedreco_trains_the_head_nine_times_and_its_extractor_once():
    problem = quadratic_problem((1.0, 5.0), (2, 2))
    algorithm = make_algorithm("fedreco", lr=0.25, batch_size=4, penalty=0.0)
    own, _ = last_round.tuned(algorithm, problem, init(algorithm, problem))
    missing = np.array([1.0, 5.0]) * 0.75**9
    np.testing.assert_allclose(own["head"]["w"], [1.0, 5.0] - missing, rtol=1e-5)
    np.testing.assert_allclose(own["representation"]["theta"], 0.25 * missing, rtol=1e-5)


def test_alike_another_method_trains_its_extractor_too_from_the_shared_one():
    """As with FedReCo without its regulariser: nine steps of the head, then one of the client's copy of theta."""
    problem, algorithm = quadratic_problem((1.0, 5.0), (2, 2)), make_algorithm("fedrep", lr=0.25, batch_size=4)
    own, shared = last_round.tuned(algorithm, problem, init(algorithm, problem), alike=True)
    missing = np.array([1.0, 5.0]) * 0.75**9
    np.testing.assert_allclose(own["head"]["w"], [1.0, 5.0] - missing, rtol=1e-5)
    np.testing.assert_allclose(own["representation"]["theta"], 0.25 * missing, rtol=1e-5)
    assert not shared


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), [("fedpac", "mlp"), ("fedcr", "gaussian_mlp")])
def test_the_extractor_stays(name, model):
    problem = blobs(model=model)
    algorithm = make_algorithm(name, lr=0.1)
    state = init(algorithm, problem)
    own, shared = last_round.tuned(algorithm, problem, state)
    jax.tree.map(np.testing.assert_array_equal, shared["representation"], state["theta"])
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(own))
    moved = jax.tree.map(lambda new, old: float(jnp.abs(new - old).max()), own["head"], state["heads"])
    assert min(jax.tree.leaves(moved)) > 0


@pytest.mark.slow
def test_both_rounds_are_stored_seed_by_seed():
    runs = {
        "rep": Settings(algorithm="fedrep", seeds=(0, 1), **SMALL, **MODEL),
        "reco": Settings(algorithm="fedreco", seeds=(1, 2), **SMALL, **MODEL),
    }
    histories = run_all(runs)
    assert after_last_round(histories) == {}
    after_last_round(run_all({"reco": replace(runs["reco"], seeds=(2,))}), train=True)
    assert after_last_round(histories) == {}  # nothing of "rep" yet
    after_last_round({"rep": histories["rep"]}, train=True)
    assert {name: run.seeds for name, run in after_last_round(histories).items()} == {"rep": (0, 1), "reco": (2,)}
    found = after_last_round(histories, train=True)
    assert {name: run.seeds for name, run in found.items()} == {"rep": (0, 1), "reco": (1, 2)}
    assert all(run.num_rounds == 2 for run in found.values())
    for run in found.values():
        np.testing.assert_allclose(run.final(), run.client_accuracy.mean(1), rtol=1e-6)
    alike = after_last_round(histories, alike=True)  # stored with the other
    np.testing.assert_array_equal(alike["reco"].client_curves, found["reco"].client_curves)
    assert (alike["rep"].client_curves != found["rep"].client_curves).any()
    broken = replace(histories["rep"], diverged=(False, True))
    assert after_last_round({"rep": broken})["rep"].diverged == (False, True)
