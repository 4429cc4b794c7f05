"""Decentralised algorithms: rounds by hand on two devices and on rings, distillation, shared sets, clear errors."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, blobs, init, quadratic_problem, step

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.algorithms.parts.distillation import outputs_on
from fedlab_lite.data import federated
from fedlab_lite.engine import Graph, evaluate, make_graph, message_bytes
from fedlab_lite.nn import count_params
from fedlab_lite.runs import Settings, build_problem, run
from fedlab_lite.util import InputError

TWO = make_graph("ring", 2)  # one edge: each is the other's only neighbour


def rounds(name, number=1, **options):
    """Devices pull theta + w to 1 and to 5; a full-batch step of 0.25 moves theta and w by 0.25 (y - theta - w)."""
    problem = replace(quadratic_problem([1.0, 5.0], [2, 2]), graph=TWO)
    algorithm = make_algorithm(name, lr=0.25, batch_size=2, epochs=1, **options)
    state = init(algorithm, problem)
    for t in range(number):
        state = step(algorithm, problem, state, jnp.arange(2), jax.random.fold_in(KEY, t))
    return state


def weights(state):
    got = state["client_params"]
    np.testing.assert_allclose(got["head"]["w"], got["representation"]["theta"], rtol=1e-6)  # both move alike
    return np.asarray(got["head"]["w"])


def test_dec_fedavg_by_hand():
    # w~ = (0.25, 1.25), then (1 - beta) own + beta other
    np.testing.assert_allclose(weights(rounds("dec_fedavg", beta=0.2)), [0.45, 1.05], rtol=1e-6)
    np.testing.assert_allclose(weights(rounds("dec_fedavg", beta=0.0)), [0.25, 1.25], rtol=1e-6)


def test_dec_fedprox_by_hand():
    """Two rounds: the second is tied to what the first exchange brought, with gradient 2 alpha (w - M)."""
    beta, alpha = 0.2, 0.1
    own = np.array([0.25, 1.25])  # round 1: w = M = w^0 = 0
    received = own[::-1]
    start = (1 - beta) * own + beta * received
    step = start - 0.25 * ((2 * start - [1.0, 5.0]) + 2 * alpha * (start - received))
    want = (1 - beta) * step + beta * step[::-1]
    np.testing.assert_allclose(weights(rounds("dec_fedprox", 2, beta=beta, prox=alpha)), want, rtol=1e-5)


def test_dfedavgm_by_hand():
    """Two epochs of one step: y1 = y0 - eta g(y0), y2 = y1 - eta g(y1) + eps (y1 - y0); at rest in the next round."""
    problem = replace(quadratic_problem([1.0, 5.0], [2, 2]), graph=TWO)
    algorithm = make_algorithm("dfedavgm", lr=0.25, batch_size=2, epochs=2, beta=0.0, momentum=0.8)
    state = init(algorithm, problem)
    y = np.zeros(2)
    for t in range(2):
        state = step(algorithm, problem, state, jnp.arange(2), jax.random.fold_in(KEY, t))
        before = y
        for _ in range(2):
            y, before = y - 0.25 * (2 * y - [1.0, 5.0]) + 0.8 * (y - before), y
        np.testing.assert_allclose(weights(state), y, rtol=1e-5)


def test_dfedadmm_by_hand():
    beta, theta, eta = 0.2, 0.5, 0.25
    y, z, p = np.array([1.0, 5.0]), np.zeros(2), np.zeros(2)
    for _ in range(2):
        w = z - eta * ((2 * z - y) + p)  # theta (w - z) is 0 at w = z
        p = p + theta * (w - z)
        message = w + p / theta
        z = (1 - beta) * message + beta * message[::-1]
    state = rounds("dfedadmm", 2, beta=beta, theta=theta)
    np.testing.assert_allclose(weights(state), z, rtol=1e-5)
    np.testing.assert_allclose(state["duals"]["head"]["w"], p, rtol=1e-5)


@pytest.mark.slow
def test_without_neighbours_pull_nothing_but_the_mean_is_kept():
    """On a regular graph averaging keeps the mean of all devices."""
    problem = blobs()
    algorithm = make_algorithm("dec_fedavg", lr=1e-30, beta=0.7)
    state = init(algorithm, problem)
    noisy = jax.tree.map(lambda leaf: leaf + jax.random.normal(KEY, leaf.shape), state["client_params"])
    after = step(algorithm, problem, {"client_params": noisy}, jnp.arange(5))["client_params"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.mean(0), b.mean(0), atol=1e-5), after, noisy)
    before, now = (algorithm.monitor(problem, {"client_params": p})["consensus"] for p in (noisy, after))
    assert float(now.mean()) < float(before.mean())


# --- function space ---------------------------------------------------------------------------------------------


def test_targets_of_cmfd_and_fedf_admm_by_hand():
    """(13) before line 7: the new multiplier enters the target; nu lets it leak, the derivative looks at the change."""
    problem = replace(blobs(sizes=[9, 9]), graph=TWO)
    outputs = jnp.array([[[0.6, 0.3, 0.1]], [[0.2, 0.2, 0.6]]])
    y, received = np.asarray(outputs), problem.exchange(problem.everyone(KEY), outputs)
    mean, error = y[::-1], y - y[::-1]
    target, kept = make_algorithm("cmfd").targets({}, outputs, received)
    np.testing.assert_allclose(target, mean)
    assert kept == {}
    state = {"multipliers": 0.5 * jnp.ones_like(outputs), "errors": 0.1 * jnp.ones_like(outputs)}
    target, kept = make_algorithm("fedf_admm", nu=0.1, derivative_gain=2.0).targets(state, outputs, received)
    multipliers = 0.9 * 0.5 + error
    np.testing.assert_allclose(kept["multipliers"], multipliers, rtol=1e-6)
    np.testing.assert_allclose(kept["errors"], error, rtol=1e-6)
    np.testing.assert_allclose(target, mean - multipliers - 2.0 * (error - 0.1), rtol=1e-5, atol=1e-6)


def test_a_multiplier_that_forgets_at_once_doubles_cmfds_pull():
    """nu = 1: g is this round's error, so the target is M - (y - M): twice as far from y as CMFD's."""
    problem, key = blobs(), jax.random.key(3)
    outputs = jax.nn.softmax(jax.random.normal(key, (5, len(problem.data.shared_x), 3)))
    received = problem.exchange(problem.everyone(KEY), outputs)
    cmfd, _ = make_algorithm("cmfd").targets({}, outputs, received)
    algorithm = make_algorithm("fedf_admm", nu=1.0)
    state = init(algorithm, problem) | {"multipliers": jnp.ones_like(outputs)}
    target, _ = algorithm.targets(state, outputs, received)
    np.testing.assert_allclose(target - outputs, 2 * (cmfd - outputs), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cmfd", "fedf_admm"])
def test_sharing_params_or_outputs_is_the_same_but_for_bytes(name):
    problem = blobs()
    states = []
    for share in ("outputs", "params"):
        algorithm = make_algorithm(name, lr=0.1, share=share)
        states.append(step(algorithm, problem, init(algorithm, problem), jnp.arange(5)))
    jax.tree.map(np.testing.assert_array_equal, *states)
    params = 4 * count_params(jax.eval_shape(problem.model.init, KEY))
    assert message_bytes(problem, algorithm) == {"up": params, "down": params}


@pytest.mark.slow
@pytest.mark.parametrize(("output", "f"), [("probabilities", jax.nn.softmax), ("logits", lambda logits: logits)])
def test_distillation_is_a_step_on_half_the_squared_distance(output, f):
    """One full batch over D_s: w - rho grad (1/2) mean ||f - target||^2, against autodiff."""
    problem = blobs()
    x = problem.data.shared_x
    algorithm = make_algorithm("fedf_admm", rho=0.3, distill_batch_size=len(x), output=output)
    params = problem.model.init(KEY)
    target = jax.random.normal(KEY, (len(x), 3))

    def loss(params):
        gap = f(problem.model.apply(params, x)) - target
        return jnp.mean(jnp.sum(gap**2, axis=-1)) / 2

    np.testing.assert_allclose(outputs_on(problem, params, x, output), f(problem.model.apply(params, x)), rtol=1e-6)

    got = algorithm.distill(problem, None, KEY, params, target, jnp.asarray(x))
    want = jax.tree.map(lambda p, g: p - 0.3 * g, params, jax.grad(loss)(params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cmfd", "fedf_admm"])
def test_devices_that_hold_one_class_learn_all_of_them(name):
    """What no averaging of labels could tell them comes through outputs on the shared set."""
    y = np.arange(60) % 3
    centres = 2 * np.random.default_rng(0).normal(size=(3, 6))
    x = (centres[y] + np.random.default_rng(1).normal(size=(60, 6))).astype(np.float32)
    problem = blobs(sizes=[10, 10, 10])
    rows = [(x[y == label][:10], y[y == label][:10]) for label in range(3)]
    data = problem.data.stack(
        rows, [(x, y)], name="one class", source="a test", num_classes=3, shared_x=x, common_test=True
    )
    problem = replace(problem, data=data, graph=make_graph("ring", 3))

    algorithm = make_algorithm(name, lr=0.05, rho=1.0, distill_batch_size=20, batch_size=10)
    state = init(algorithm, problem)
    for t in range(60):
        state = step(algorithm, problem, state, jnp.arange(3), jax.random.fold_in(KEY, t))
    assert float(evaluate(problem, *algorithm.models(problem, state, KEY))["accuracy"].min()) > 0.9


# --- settings, shared sets, common test rows --------------------------------------------------------------------

TINY = {"dataset": "textures", "num_clients": 4, "train_size": 40, "test_size": 12, "num_rounds": 1}
SHARED = {"shared_size": 20, "common_test": True, "graph": "ring", "partition": "iid"}


def test_the_settings_draw_the_graph():
    by = {"algorithm": "dec_fedavg", "graph": "random", "edge_probability": 0.5, "graph_seed": 3}
    graph = build_problem(Settings(**TINY | SHARED | by)).graph
    np.testing.assert_array_equal(graph.adjacency, make_graph("random", 4, edge_probability=0.5, seed=3).adjacency)
    assert Settings(**TINY | by | {"graph": ""}) == Settings(**TINY | by | {"graph": "", "edge_probability": None})


def test_a_shared_set_is_held_out_and_the_test_rows_are_common():
    options = {"partition": "by_label", "num_clients": 10, "classes_per_client": 1, "train_size": 50, "test_size": 20}
    data = federated("textures", **options, shared_size=30, common_test=True)
    assert data.shared_x.shape == (30, 32, 32, 3)
    assert data.size.tolist() == [5] * 10
    assert [len(np.unique(y)) for y in data.y] == [1] * 10
    rows = {row.tobytes() for row in data.x.reshape(-1, 32, 32, 3)}
    assert len(rows) == 50
    assert not rows & {row.tobytes() for row in data.shared_x}
    assert data.common_test
    assert data.test_y.shape == (1, 20)
    assert np.bincount(data.test_y[0]).tolist() == [2] * 10
    seen, newcomers = data.split(4)
    assert (seen.num_clients, newcomers.num_clients) == (6, 4)
    assert seen.test_y.shape == newcomers.test_y.shape == (1, 20)
    skewed = federated("textures", **options, shared_size=30, shared_alpha=5.0, common_test=True)
    assert skewed.shared_x.shape == data.shared_x.shape
    assert skewed.fingerprint() != data.fingerprint()


@pytest.mark.slow
def test_common_rows_judge_as_copies_of_them_would():
    problem = build_problem(Settings(**TINY, **SHARED, algorithm="fedf_admm"))
    copies = {name: np.repeat(getattr(problem.data, name), 4, axis=0) for name in ("test_x", "test_y", "test_size")}
    own = [problem.model.init(key) for key in jax.random.split(KEY, 4)]
    own = jax.tree.map(lambda *leaves: jnp.stack(leaves), *own)
    want = evaluate(replace(problem, data=replace(problem.data, **copies)), own, {})
    got = evaluate(problem, own, {})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)
    whole = evaluate(problem, {}, jax.tree.map(lambda leaf: leaf[0], own))["accuracy"]  # one model for all
    np.testing.assert_allclose(whole, got["accuracy"][0])


def test_a_run_keeps_every_devices_curve():
    history = run(Settings(**TINY, **SHARED, algorithm="dec_fedavg", seeds=(0, 1), model_options={"width": 8}))
    assert history.client_curves.shape == (2, 2, 4)
    gap = history.client_curves.max(-1) - history.client_curves.min(-1)
    np.testing.assert_allclose(history.metrics["accuracy_gap"], gap, atol=1e-6)
    np.testing.assert_allclose(history.metrics["accuracy_pooled"], history.metrics["accuracy"], atol=1e-6)
    assert history.metrics["consensus"][:, 0].max() < 1e-5  # one w^0 for all


def test_after_its_first_local_training_a_client_is_where_local_is():
    options = TINY | SHARED | {"seeds": (0, 1), "model_options": {"width": 8}}
    mixing = run(Settings(**options, algorithm="dec_fedavg"))
    local = run(Settings(**options | {"graph": ""}, algorithm="local", algorithm_options={"epochs": 1}))
    for metric in ("accuracy", "accuracy_gap"):
        np.testing.assert_array_equal(mixing.metrics[f"{metric}_trained"], local.metrics[metric])
    assert mixing.metrics["accuracy_gap_trained"][:, 1].all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"graph": "rng"}, "graph must be one of .*, got 'rng'; did you mean 'ring'"),
        ({"shared_size": -1}, "shared_size must be of type int, at least 0, got -1"),
        ({"algorithm_options": {"nu": 1.5}}, "nu of algorithm fedf_admm must be of type float, 0 to 1, got 1.5"),
        ({"algorithm_options": {"share": "output"}}, "share of .* got 'output'; did you mean 'outputs'"),
        (
            {"algorithm_options": {"distill_batch_size": 0}},
            "distill_batch_size of .* at least 1, got 0",
        ),
        (
            {"algorithm": "dfedadmm", "algorithm_options": {"theta": 0.0}},
            "theta of .* above 0, got 0.0",
        ),
    ],
)
def test_settings_that_cannot_be(values, message):
    with pytest.raises(InputError, match=message):
        Settings(**TINY | SHARED | {"algorithm": "fedf_admm"} | values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"graph": ""}, "FedFADMM has no server and needs a graph"),
        ({"shared_size": 0}, "FedFADMM distils on a shared unlabelled set, but the data have none; set `shared_size`"),
        ({"cohort_size": 2}, "all clients take part in each round of FedFADMM; leave cohort_size out"),
        ({"graph": "random", "num_edges": 2}, "2 edges"),
        ({"graph": "ring", "num_edges": 4}, "num_edges"),
        ({"partition": "by_label", "num_clients": 3, "classes_per_client": 1}, "3 of 10 classes"),
        ({"dataset": "glyphs", "partition": "natural"}, "partition 'natural' allows no common_test and no shared_size"),
        ({"shared_size": 48, "shared_alpha": 0.01}, "asks for more samples of class"),
    ],
)
def test_problems_that_cannot_be(values, message):
    with pytest.raises(InputError, match=message):
        run(Settings(**TINY | SHARED | {"algorithm": "fedf_admm"} | values))


def test_a_graph_that_does_not_average():
    """A `Graph` made by hand is unchecked; what it would mix with is checked before the first round."""
    adjacency = np.array(make_graph("ring", 5).adjacency)
    adjacency[0, 1] = -3.0
    problem = replace(blobs(), graph=Graph(adjacency, "by hand"))
    with pytest.raises(InputError, match="mixing"):
        make_algorithm("dec_fedavg").check(problem)


def test_a_graph_of_another_size():
    problem = replace(blobs(), graph=make_graph("ring", 4))
    with pytest.raises(InputError, match="the graph has 4 clients, the data have 5"):
        make_algorithm("dec_fedavg").check(problem)


@pytest.mark.parametrize("name", ["dpsgd", "deprl"])
def test_metropolis_must_be_doubly_stochastic_and_uniform_need_not(name, monkeypatch):
    """On a star the columns of uniform weights do not sum to 1: the centre counts for more."""
    problem = replace(quadratic_problem([1.0, 5.0, 3.0], [2, 2, 2]), graph=make_graph("star", 3))
    make_algorithm(name, mixing="uniform").check(problem)
    monkeypatch.setattr(Graph, "metropolis", property(lambda graph: graph.uniform))
    with pytest.raises(InputError, match="not doubly stochastic"):
        make_algorithm(name, mixing="metropolis").check(problem)
