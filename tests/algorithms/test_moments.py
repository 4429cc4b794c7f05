"""The two moments of a round: models after mixing, with neighbours or at a server, and after local training."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, blobs, common_problem, history, init, step

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.engine import make_graph
from fedlab_lite.engine.curves import judgements
from fedlab_lite.runs import moment_of

MIX_FIRST = {"order": "mix_first"}
EVERY = [(name, {}) for name in ALGORITHMS] + [("dpsgd", MIX_FIRST), ("deprl", MIX_FIRST)]
MOMENTS = {"mixed", "trained"}
SERVER = ("fedper", "fedrep", "fedpac", "fedcr", "fedeq", "fedrod")  # personalised, with a part that is averaged
DECENTRALISED = {"cmfd", "dec_fedavg", "dec_fedprox", "dfedavgm", "dfedadmm", "fedf_admm", "dpsgd", "dispfl", "deprl"}


def after_rounds(name, number=2, **options):
    """Train on a star, where neighbours' means and Metropolis weights differ."""
    problem = replace(blobs(num_clients=3, sizes=[7, 9, 8]), graph=make_graph("star", 3))
    algorithm = make_algorithm(name, lr=0.1, epochs=1, **options)
    states = [init(algorithm, problem)]
    for t in range(number):
        states.append(step(algorithm, problem, states[-1], jnp.arange(3), jax.random.fold_in(KEY, t)))
    return problem, algorithm, states


def both(problem, algorithm, state):
    """The models of the two moments, (mixed, trained)."""
    other = (MOMENTS - {algorithm.moment}).pop()
    found = {algorithm.moment: algorithm.models(problem, state, KEY)}
    found |= {other: algorithm.other_models(problem, state, KEY)[other]}
    assert not found["mixed"][1] | found["trained"][1]  # nothing is shared by all
    return found["mixed"][0], found["trained"][0]


def both_of_server(problem, algorithm, state):
    """The clients' own parts at the two moments, (mixed, trained)."""
    return algorithm.models(problem, state, KEY)[0], algorithm.other_models(problem, state, KEY)["trained"][0]


def assert_mixed(matrix, mixed, trained):
    """Each device's params are the averages that the matrix gives."""
    matrix = np.asarray(matrix, float)
    for got, own in zip(jax.tree.leaves(mixed), jax.tree.leaves(trained), strict=True):
        np.testing.assert_allclose(got, np.einsum("ij,j...->i...", matrix, np.asarray(own, float)), atol=1e-6)
        assert np.ptp(own, axis=0).max() > 1e-4  # or mixing would do nothing


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_the_other_moment_is_judged_too(name, options):
    algorithm, problem = make_algorithm(name, **options), common_problem(name)
    state = jax.eval_shape(algorithm.init, problem, KEY)
    others = jax.eval_shape(algorithm.other_models, problem, state, KEY).keys()
    assert algorithm.moment in {"", *MOMENTS}
    assert others & MOMENTS == (MOMENTS - {algorithm.moment} if algorithm.moment else set())
    assert bool(algorithm.moment) == (name in DECENTRALISED or name in SERVER)
    if name in DECENTRALISED:
        assert ("trained" in state) == (algorithm.moment == "mixed")  # no entry that nothing reads


@pytest.mark.parametrize("name", ["dec_fedavg", "dec_fedprox", "dfedavgm"])
def test_the_average_of_the_trained_models(name):
    """Eq. (21) of FedF-ADMM: (1 - beta) own + beta M."""
    problem, algorithm, states = after_rounds(name, beta=0.3)
    matrix = 0.7 * np.eye(3) + 0.3 * np.asarray(problem.graph.neighbour_mean)
    assert_mixed(matrix, *both(problem, algorithm, states[-1]))


def test_dfedadmm_mixes_messages_and_judges_params():
    problem, algorithm, states = after_rounds("dfedadmm", beta=0.3, theta=0.5)
    mixed, trained = both(problem, algorithm, states[-1])
    sent = jax.tree.map(lambda w, p: w + p / 0.5, trained, states[-1]["duals"])
    assert_mixed(0.7 * np.eye(3) + 0.3 * np.asarray(problem.graph.neighbour_mean), mixed, sent)
    duals = jax.tree.map(lambda p, w, z: p + 0.5 * (w - z), states[-2]["duals"], trained, states[-2]["client_params"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), states[-1]["duals"], duals)


@pytest.mark.parametrize("name", ["cmfd", "fedf_admm"])
def test_distillation_lies_between_the_two_moments(name):
    problem, algorithm, (_, state) = after_rounds(name, 1)
    mixed, trained = both(problem, algorithm, state)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(mixed), jax.tree.leaves(trained), strict=True))
    problem, algorithm, (_, without) = after_rounds(name, 1, distill_epochs=0)
    for each in both(problem, algorithm, without):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), each, trained)


def test_dpsgds_step_before_the_average_is_added():
    """P x + change after mixing, x + change before it: the difference is P x - x."""
    problem, algorithm, states = after_rounds("dpsgd")
    mixed, trained = both(problem, algorithm, states[-1])
    start = states[-2]["client_params"]
    change = jax.tree.map(jnp.subtract, trained, start)
    assert_mixed(problem.graph.metropolis, jax.tree.map(jnp.subtract, mixed, change), start)


@pytest.mark.parametrize("mixing", ["metropolis", "uniform"])
def test_dpsgd_that_mixes_first(mixing):
    problem, algorithm, states = after_rounds("dpsgd", mixing=mixing, **MIX_FIRST)
    assert_mixed(getattr(problem.graph, mixing), *both(problem, algorithm, states[-1]))


@pytest.mark.parametrize("order", ["train_first", "mix_first"])
def test_deprl_mixes_phi_and_keeps_the_heads(order):
    problem, algorithm, states = after_rounds("deprl", order=order)
    mixed, trained = both(problem, algorithm, states[-1])
    assert_mixed(problem.graph.metropolis, mixed["representation"], trained["representation"])
    jax.tree.map(np.testing.assert_array_equal, mixed["head"], trained["head"])


def test_dispfl_starts_its_next_training_from_the_mixed_models():
    problem, algorithm, states = after_rounds("dispfl")
    mixed, trained = both(problem, algorithm, states[-1])
    still = replace(algorithm, lr=1e-30)
    after = step(still, problem, states[-1], jnp.arange(3), jax.random.key(7))["client_params"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after, mixed)
    jax.tree.map(lambda w, m: np.testing.assert_array_equal(w[~m], 0), mixed, states[-1]["next_masks"])
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(mixed), jax.tree.leaves(trained), strict=True))


@pytest.mark.parametrize("name", SERVER)
def test_the_server_averages_what_clients_trained(name):
    """The mean of the cohort's trained parts is the shared part, by rows or plain; idle clients keep theirs."""
    problem = replace(common_problem(name), weight=None)
    algorithm = make_algorithm(name, lr=0.1, epochs=1)
    state = init(algorithm, problem)
    start = algorithm.other_models(problem, state, KEY)["trained"][0]
    state = step(algorithm, problem, state, jnp.array([0, 2]), KEY)
    own, nothing = algorithm.other_models(problem, state, KEY)["trained"]
    shared = algorithm.models(problem, state, KEY)[1]
    assert not nothing
    share = np.ones(2) if name in ("fedcr", "fedeq") else np.asarray(problem.data.size)[[0, 2]]
    for part in shared:
        for one, mean, old in zip(*map(jax.tree.leaves, (own[part], shared[part], start[part])), strict=True):
            np.testing.assert_allclose(np.average(one[jnp.array([0, 2])], axis=0, weights=share), mean, atol=1e-5)
            np.testing.assert_array_equal(one[1], old[1])
    changed = jax.tree.map(lambda one, old: float(jnp.abs(one - old)[0].max()), own, start)
    assert all(max(jax.tree.leaves(changed[part])) > 0 for part in own)


def test_fedpac_judges_the_head_that_a_client_trained_and_the_mixture():
    """A client that is alone in its round mixes with no other, so both heads are the same."""
    problem = common_problem("fedpac")
    algorithm = make_algorithm("fedpac", lr=0.1, epochs=1)
    start = init(algorithm, problem)
    state = step(algorithm, problem, start, jnp.array([1]), KEY)
    mixed, trained = (models["head"] for models in both_of_server(problem, algorithm, state))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b[1], atol=1e-6), mixed, trained)
    assert any((a[1] != b[1]).any() for a, b in zip(*map(jax.tree.leaves, (trained, start["heads"])), strict=True))
    state = step(algorithm, problem, start, jnp.arange(problem.num_clients), KEY)
    mixed, trained = (models["head"] for models in both_of_server(problem, algorithm, state))
    for got, own in zip(jax.tree.leaves(mixed), jax.tree.leaves(trained), strict=True):
        assert (np.asarray(got) <= np.asarray(own).max(0) + 1e-5).all()  # a convex mixture of what was trained
        assert (np.asarray(got) >= np.asarray(own).min(0) - 1e-5).all()
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (mixed, trained)), strict=True))


def test_fedrod_answers_with_both_heads_at_both_moments():
    problem = common_problem("fedrod")
    algorithm = make_algorithm("fedrod", lr=0.1, epochs=1)
    state = step(algorithm, problem, init(algorithm, problem), jnp.arange(problem.num_clients), KEY)
    models = {"": algorithm.models(problem, state, KEY)} | algorithm.other_models(problem, state, KEY)
    found = judgements(problem, models, None, algorithm.predictor())
    assert {name: each[-1] is not None for name, each in found.items()} == {"": True, "trained": True, "global": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("dpsgd", MIX_FIRST), ("dpsgd", {}), ("dispfl", {}), ("deprl", MIX_FIRST), ("deprl", {})]
)
def test_an_equilibrium_layer_is_judged_inside_its_ball(name, options):
    problem = blobs(num_clients=3, sizes=[5, 5, 5], model="deq_mlp", width=8, features=4, kappa=0.3)
    algorithm = make_algorithm(name, lr=1.0, epochs=1, **options)
    state = step(algorithm, problem, init(algorithm, problem), jnp.arange(3))
    for models in both(problem, algorithm, state):
        assert float(jnp.abs(models["representation"]["B"]).sum(-1).max()) <= 0.3 + 1e-6


def test_the_moment_of_a_history():
    found = history([[0.1, 0.2]], seeds=(0,), algorithm="dpsgd", algorithm_options=MIX_FIRST, graph="ring")
    assert moment_of(found) == "trained"
    assert moment_of(replace(found, settings=replace(found.settings, algorithm_options={}))) == "mixed"
    assert moment_of(history([[0.1, 0.2]], seeds=(0,))) == ""
    assert moment_of(replace(found, settings=None)) == ""
