"""The common test that every algorithm passes, and rounds computed by hand."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, blobs, cohort_of, common_problem, init, quadratic_problem, run_rounds, some, step

from fedlab_lite.algorithms import ALGORITHMS, algorithm_options, lagrangian_terms, make_algorithm
from fedlab_lite.data import Federated
from fedlab_lite.engine import ClientData, Problem, evaluate, make_graph, message_bytes, rows_of
from fedlab_lite.nn import count_params
from fedlab_lite.util import InputError

COHORT = jnp.array([0, 2, 3])
BODY_ALONE = ("fedper", "fedrep", "fedeq", "fedbabu", "fedcr", "fedreco", "deprl")  # what crosses the network


@pytest.fixture(scope="module")
def problem():
    return blobs()


@pytest.fixture(scope="module", params=ALGORITHMS)
def name(request):
    return request.param


class TestEveryAlgorithm:
    @pytest.fixture(scope="class")
    @classmethod
    def problem(cls, name):
        return common_problem(name)

    def test_state_keeps_its_shapes_and_stays_finite(self, name, problem):
        algorithm = make_algorithm(name, lr=0.1)
        before = jax.eval_shape(algorithm.init, problem, KEY)
        state = run_rounds(algorithm, problem, 3, COHORT)
        assert jax.tree.map(lambda a: (a.shape, a.dtype), state) == jax.tree.map(lambda a: (a.shape, a.dtype), before)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))

    def test_what_clients_own_is_stacked_over_them(self, name, problem):
        algorithm = make_algorithm(name)
        state = jax.eval_shape(algorithm.init, problem, KEY)
        for entry in algorithm.owned:
            assert all(leaf.shape[0] == problem.num_clients for leaf in jax.tree.leaves(state.get(entry, {})))

    def test_loss_falls_for_the_sampled_clients(self, name, problem):
        algorithm = make_algorithm(name, lr=0.1)
        judge = jax.jit(lambda problem, state: evaluate(problem, *algorithm.models(problem, state, KEY))["loss"])
        start = judge(problem, init(algorithm, problem))
        trained = run_rounds(algorithm, problem, 8, COHORT)
        assert float(judge(problem, trained)[COHORT].mean()) < 0.7 * float(start.mean())

    def test_every_client_has_a_whole_model(self, name, problem):
        algorithm = make_algorithm(name)
        state = jax.eval_shape(algorithm.init, problem, KEY)
        one = jax.eval_shape(problem.model.init, KEY)
        others = jax.eval_shape(algorithm.other_models, problem, state, KEY)
        unseen = replace(problem, data=problem.data.split(2)[1])  # two newcomers
        joined = jax.eval_shape(algorithm.join, unseen, state, KEY)
        assert "" in joined
        judged = [jax.eval_shape(algorithm.models, problem, state, KEY), *others.values(), *joined.values()]
        for own, shared in judged:
            clients = 2 if any(own is models[0] for models in joined.values()) else problem.num_clients
            assert not own.keys() & shared.keys()
            assert all(leaf.shape[0] == clients for leaf in jax.tree.leaves(own))
            shapes = jax.tree.map(lambda a: a.shape[1:], own) | jax.tree.map(lambda a: a.shape, shared)
            more = {"personal": shapes["head"]} if "personal" in own else {}  # FedRoD's second head
            assert shapes == jax.tree.map(lambda a: a.shape, one) | more

    @pytest.mark.slow
    def test_executors_agree(self, name, problem):
        algorithm = make_algorithm(name, lr=0.1)
        want = run_rounds(algorithm, replace(problem, executor="loop"), 1, COHORT)
        for executor in ("map", "vmap"):
            got = run_rounds(algorithm, replace(problem, executor=executor), 1, COHORT)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)

    def test_a_repeat_is_bit_equal(self, name, problem):
        algorithm = make_algorithm(name, lr=0.1)
        a, b = run_rounds(algorithm, problem, 2, COHORT), run_rounds(algorithm, problem, 2, COHORT)
        jax.tree.map(np.testing.assert_array_equal, a, b)

    @pytest.mark.slow
    def test_trajectories_of_a_batch_equal_single_ones(self, name, problem):
        """Seeds and a sweep over step sizes and epochs: one program, each row as if alone."""
        algorithms = [make_algorithm(name, lr=lr, epochs=epochs) for lr, epochs in ((0.05, 1), (0.1, 2))]
        keys = jax.random.split(KEY, 2)
        cohorts = jnp.stack([cohort_of(algorithms[0], problem, cohort) for cohort in ([0, 1, 2], [1, 3, 4])])
        states = [init(algorithm, problem, key) for algorithm, key in zip(algorithms, keys, strict=True)]
        stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows) for rows in (algorithms, states)]
        together = jax.jit(jax.vmap(step, (0, None, 0, 0, 0)))(stacked[0], problem, stacked[1], cohorts, keys)
        for row, algorithm in enumerate(algorithms):
            alone = step(algorithm, problem, states[row], cohorts[row], keys[row])
            jax.tree.map(lambda a, b, i=row: np.testing.assert_allclose(a[i], b, atol=1e-6), together, alone)

    @pytest.mark.slow
    def test_a_round_does_not_depend_on_the_order_of_its_cohort(self, name, problem):
        """Training orders it for the devices, with an idle place (4 for 3). Here it stays as given, backwards."""
        algorithm = make_algorithm(name, lr=0.1)
        state, cohort = init(algorithm, problem), cohort_of(algorithm, problem, COHORT)
        balanced = step(algorithm, problem, state, cohort)
        at = problem.everyone(KEY) if algorithm.needs_all_clients else some(*COHORT[::-1].tolist())
        plain = jax.jit(lambda algorithm, problem, state, at: algorithm.round(problem, state, at))
        given = plain(algorithm, problem, state, at)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), balanced, given)

    def test_idle_clients_keep_everything(self, name, problem):
        algorithm, idle = make_algorithm(name, lr=0.1), jnp.array([1, 4])
        before = init(algorithm, problem)
        after = step(algorithm, problem, before, cohort_of(algorithm, problem, COHORT))
        for part in set(algorithm.owned) & before.keys() - {"masks", "next_masks"}:
            for a, b in zip(jax.tree.leaves(before[part]), jax.tree.leaves(after[part]), strict=True):
                assert not np.array_equal(a[COHORT], b[COHORT])
                assert algorithm.needs_all_clients or np.array_equal(a[idle], b[idle])

    @pytest.mark.slow
    def test_newcomers_do_better_than_the_untrained(self, name, problem):
        """Algorithms that adapt to a newcomer's rows, or whose shared params fit it, lower its loss."""
        algorithm = make_algorithm(name, lr=0.1, join_epochs=5)
        seen, newcomers = problem.data.split(2)
        training = replace(problem, data=seen, graph=make_graph("ring", 3))
        unseen = replace(problem, data=newcomers)
        state = run_rounds(algorithm, training, 8, jnp.arange(3))
        models = jax.jit(algorithm.join)(unseen, state, KEY)[""]
        loss = jax.jit(partial(evaluate, predictor=algorithm.predictor()))(unseen, *models)["loss"]
        start = evaluate(unseen, {}, problem.model.init(KEY))["loss"]
        assert float(loss.mean()) < 0.8 * float(start.mean())

    def test_bytes(self, name, problem):
        params = jax.eval_shape(problem.model.init, KEY)
        whole, shared = 4 * count_params(params), 4 * count_params(params["representation"])
        outputs = 4 * len(problem.data.shared_x) * problem.data.num_classes
        want = 0 if name == "local" else shared if name in BODY_ALONE else whole
        want = outputs if name in ("cmfd", "fedf_admm") else want
        classes, features = problem.data.num_classes, 4 if name == "fedcr" else 8
        more = {"fedcr": (2, 2), "fedpac": (2, 1)}.get(name, (0, 0))  # statistics, in numbers a feature and class
        up, down = (want + 4 * classes * features * times for times in more)
        up += 4 * (classes + 1) if name == "fedpac" else 0  # shares of the classes, and a variance
        if name == "dispfl":
            up = down = sum(4 * kept for kept in jax.tree.leaves(make_algorithm(name).kept(params))) + sum(
                -(-leaf.size // 8) for leaf in jax.tree.leaves(params)
            )
        found = message_bytes(problem, make_algorithm(name))
        assert found == {"up": up, "down": down}, f"if {name} sends something else, count it in this test"


# Two clients, row loss (theta + w - y)^2 / 2, y = 1 and 5, from theta = w = 0; one full-batch step of lr 0.5 an epoch:
# a joint step moves theta and w by 0.5 y each; a step of one alone likewise.
def one_round(name, sizes=(3, 1), **options):
    problem = quadratic_problem([1.0, 5.0], sizes)
    algorithm = make_algorithm(name, lr=0.5, batch_size=4, epochs=1, **options)
    return problem, algorithm, step(algorithm, problem, init(algorithm, problem), jnp.arange(2))


def test_fedavg_by_hand():
    """Clients: theta = w = 0.5 and 2.5; weights 3/4 and 1/4: 0.75 * 0.5 + 0.25 * 2.5 = 1."""
    _, _, state = one_round("fedavg")
    assert float(state["params"]["representation"]["theta"]) == pytest.approx(1.0)
    assert float(state["params"]["head"]["w"]) == pytest.approx(1.0)


def test_fedavg_ft_by_hand():
    """From theta = w = 1: residual 2 - y = 1 and -3, so theta_i = 1 - 0.5 = 0.5 and 1 + 1.5 = 2.5; the global stays."""
    problem, algorithm, state = one_round("fedavg_ft", ft_epochs=1)
    np.testing.assert_allclose(algorithm.models(problem, state, KEY)[0]["representation"]["theta"], [0.5, 2.5])
    np.testing.assert_allclose(algorithm.other_models(problem, state, KEY)["global"][1]["head"]["w"], 1.0)


def test_ditto_by_hand():
    """w as FedAvg's: 1. v_i from 0, lambda = 1: gradient -y + (0 - 0), so 0.5 and 2.5. Round 2, client 1, received 1:
    residual 5 - 5 = 0 (theta + w), pull 2.5 - 1 = 1.5, so v = 2.5 - 0.5 * 1.5 = 1.75; client 0 keeps its own.
    """
    problem, algorithm, state = one_round("ditto", personal_epochs=1, prox=1.0)
    assert float(state["params"]["representation"]["theta"]) == pytest.approx(1.0)
    np.testing.assert_allclose(state["client_params"]["head"]["w"], [0.5, 2.5])
    after = step(algorithm, problem, state, jnp.array([1]))
    np.testing.assert_allclose(after["client_params"]["head"]["w"], [0.5, 1.75])
    joined = algorithm.join(replace(problem, data=problem.data.split(1)[1]), state, KEY)[""][0]
    # a newcomer of y = 5, join_epochs = 3, from w = (1, 1): residual -3; 1 + 1.5 = 2.5; pull 1.5, residual 0: 1.75; ...
    assert float(joined["head"]["w"][0]) == pytest.approx(1.75 - 0.5 * (3.5 - 5 + 0.75))


@dataclass(frozen=True)
class Identity:
    """Features are x itself, all labels equally likely."""

    def represent(self, params, x):
        return x

    def forward(self, params, x):
        return jnp.zeros((len(x), 2)), None


class TestNearestNeighbours:
    """Two clients of one-dimensional features; the model says 0.5 / 0.5 everywhere."""

    @staticmethod
    def problem(texts=False):
        x = np.array([[[0.0], [1.0], [3.0], [9.0]], [[0.0], [1.0], [2.0], [9.0]]], np.float32)
        y = np.array([[0, 1, 1, 1], [1, 0, 0, 0]], np.int32)
        size = np.array([3, 3], np.int32)  # the fourth row is padding
        queries = np.array([[[0.2]], [[0.2]]], np.float32)
        answers, one = np.array([[0], [1]], np.int32), np.array([1, 1], np.int32)
        data = Federated(x, y, size, queries, answers, one, x[:0, 0], "line", "made by a test", 2)
        return Problem(data, Identity(), "map")

    def answer(self, client, **options):
        problem = self.problem()
        train = ClientData(*rows_of((problem.data.x, problem.data.y, problem.data.size), client))
        answer = make_algorithm("knn_per", **options).predictor()(problem, {}, train)
        return np.exp(answer(jnp.array([[0.2]]))[0])[0]

    def test_votes_by_hand(self):
        """Client 0, query 0.2: distances 0.2 (label 0) and 0.8 (label 1): 1 / (1 + e^-0.6) = 0.6457 for label 0."""
        np.testing.assert_allclose(self.answer(0, k=2, mix=1.0), [0.6457, 0.3543], atol=1e-4)
        np.testing.assert_allclose(self.answer(0, k=2, mix=0.5), [0.5728, 0.4272], atol=1e-4)
        np.testing.assert_allclose(self.answer(1, k=1, mix=1.0), [0.0, 1.0], atol=1e-6)

    def test_padding_never_votes(self):
        np.testing.assert_allclose(self.answer(0, k=4, mix=1.0), self.answer(0, k=3, mix=1.0))

    def test_judged_with_the_neighbours(self):
        problem = self.problem()
        algorithm = make_algorithm("knn_per", k=1, mix=1.0)
        assert evaluate(problem, {}, {}, predictor=algorithm.predictor())["accuracy"].tolist() == [1.0, 1.0]

    def test_more_neighbours_than_rows(self):
        with pytest.raises(InputError, match="k = 10 neighbours, but client 0 has 3 training rows"):
            make_algorithm("knn_per", k=10).check(self.problem())


def test_newcomers_have_as_many_rows_as_neighbours_vote():
    problem = TestNearestNeighbours.problem()
    few = replace(problem.data, size=np.array([3, 2], np.int32))
    with pytest.raises(InputError, match="k = 3 neighbours, but newcomer 1 has 2 training rows; use a smaller k"):
        make_algorithm("knn_per", k=3).check(replace(problem, newcomers=few))
    make_algorithm("knn_per", k=2).check(replace(problem, newcomers=few))


def test_fedper_by_hand():
    """Joint steps as FedAvg's, theta averaged (1), heads kept (0.5 and 2.5)."""
    _, _, state = one_round("fedper")
    assert float(state["theta"]["theta"]) == pytest.approx(1.0)
    np.testing.assert_allclose(state["heads"]["w"], [0.5, 2.5])


def test_fedrep_by_hand():
    """Heads first: w = 0.5, 2.5. Then theta: residual w - y = -0.5, -2.5, so theta_i = 0.25, 1.25; mean 0.5."""
    _, _, state = one_round("fedrep", head_epochs=1)
    np.testing.assert_allclose(state["heads"]["w"], [0.5, 2.5])
    assert float(state["theta"]["theta"]) == pytest.approx(0.5)


FEDEQ = {"head_epochs": 1, "rho": 2.0, "dual_scale": 0.0}


def test_fedeq_by_hand():
    """Round 1 as FedRep, but a uniform mean: theta_i = 0.25, 1.25, theta = 0.75; lambda_i = rho theta_i = 0.5, 2.5.

    Round 2, rho = 2, client 1 alone, received theta = 0.75, w_1 = 2.5:
    head at theta: residual 0.75 + 2.5 - 5 = -1.75, w_1 = 3.375;
    gradient at theta: (0.75 + 3.375 - 5) + lambda 2.5 = 1.625, theta_1 = 0.75 - 0.5 * 1.625 = -0.0625;
    lambda_1 = 2.5 + 2 (-0.0625 - 0.75) = 0.875; theta = theta_1.
    """
    problem, algorithm, state = one_round("fedeq", **FEDEQ)
    np.testing.assert_allclose(state["thetas"]["theta"], [0.25, 1.25])
    assert float(state["theta"]["theta"]) == pytest.approx(0.75)
    np.testing.assert_allclose(state["duals"]["theta"], [0.5, 2.5])
    np.testing.assert_allclose(algorithm.monitor(problem, state)["consensus"], [0.5, 0.5])

    after = step(algorithm, problem, state, jnp.array([1]))
    np.testing.assert_allclose(after["heads"]["w"], [0.5, 3.375])
    np.testing.assert_allclose(after["thetas"]["theta"], [0.25, -0.0625])  # client 0 is idle: all of it stays
    np.testing.assert_allclose(after["duals"]["theta"], [0.5, 0.875])
    assert float(after["theta"]["theta"]) == pytest.approx(-0.0625)


def test_fedeq_that_starts_at_its_own_by_hand():
    """Round 2 as above, but from theta_1 = 1.25: gradient (1.25 + 3.375 - 5) + 2.5 + rho (1.25 - 0.75) = 3.125."""
    problem, algorithm, state = one_round("fedeq", start="own", **FEDEQ)
    after = step(algorithm, problem, state, jnp.array([1]))
    np.testing.assert_allclose(after["thetas"]["theta"], [0.25, 1.25 - 0.5 * 3.125])
    np.testing.assert_allclose(after["duals"]["theta"], [0.5, 2.5 + 2 * (-0.3125 - 0.75)])


def test_fedeq_server_argmin_by_hand():
    """Round 1: theta_i + lambda_i / rho = 0.25 + 0.25 and 1.25 + 1.25, whose mean is theta = 1.5.

    Round 2, client 1 alone: residual 1.5 + 2.5 - 5 = -1, w_1 = 3; gradient (1.5 + 3 - 5) + 2.5 = 2, theta_1 = 0.5;
    lambda_1 = 2.5 + 2 (0.5 - 1.5) = 0.5; its sum is 0.75, that of client 0 still 0.5: theta = 0.625, the mean of both.
    """
    problem, algorithm, state = one_round("fedeq", server="argmin", **FEDEQ)
    assert float(state["theta"]["theta"]) == pytest.approx(1.5)
    after = step(algorithm, problem, state, jnp.array([1]))
    np.testing.assert_allclose(after["thetas"]["theta"], [0.25, 0.5])
    np.testing.assert_allclose(after["duals"]["theta"], [0.5, 0.5])
    assert float(after["theta"]["theta"]) == pytest.approx(0.625)


@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 5.0, 0.5, 3.0]])
def test_fedeq_server_argmin_minimises_the_lagrangian_of_all_clients(problem, weight):
    """Line 4 with eq. (12), after rounds of other cohorts, and before the first, when duals are not zero."""
    problem = replace(problem, weight=weight and jnp.array(weight))
    algorithm = make_algorithm("fedeq", lr=0.1, rho=0.5, dual_scale=0.1, server="argmin")
    state = init(algorithm, problem)

    def slope(theta, state):
        terms = jax.vmap(lagrangian_terms, (0, None, 0, None))
        share = 1 if weight is None else jnp.array(weight)
        return jax.grad(lambda theta: (share * terms(state["thetas"], theta, state["duals"], 0.5)).sum())(theta)

    for t, cohort in enumerate(([0, 2, 3], [1, 2, 4])):
        for leaf in jax.tree.leaves(slope(state["theta"], state)):
            np.testing.assert_allclose(leaf, 0, atol=1e-5)
        state = step(algorithm, problem, state, jnp.array(cohort), jax.random.fold_in(KEY, t))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "where"),
    [
        ("fedeq", {"server": "argmin", "rho": 0.01, "dual_scale": 10.0}, "theta"),
        ("dfedadmm", {"theta": 0.01, "lr": 1.0}, "client_params"),
    ],
)
def test_duals_do_not_push_an_equilibrium_layer_out_of_its_ball(name, options, where):
    """lambda / rho and p / theta make no convex combinations of what lies inside."""
    problem = blobs(model="deq_mlp", width=16, features=8, kappa=0.95)
    algorithm = make_algorithm(name, **options)
    state = init(algorithm, problem)
    if name == "dfedadmm":
        keys = iter(jax.random.split(KEY, 99))
        state["duals"] = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), state["duals"])
    for _ in range(2):
        B = state[where].get("representation", state[where])["B"]
        assert float(jnp.abs(B).sum(-1).max()) <= 0.95 + 1e-6
        state = step(algorithm, problem, state, cohort_of(algorithm, problem, COHORT))
    if name == "fedeq":
        assert float(jnp.abs(state["mean"]["B"]).sum(-1).max()) > 2  # what is projected was outside


@pytest.mark.slow
def test_fedeqs_warm_starts_find_the_same_equilibria(monkeypatch):
    """Tight solver: the trajectory does not depend on where it starts."""
    problem = blobs(model="deq_mlp", width=16, features=8, tol=1e-6, max_iter=200, warm_iter=200)
    algorithm = make_algorithm("fedeq", lr=0.05, epochs=2)
    warm = run_rounds(algorithm, problem, 2, COHORT)
    monkeypatch.setattr(type(problem), "equilibria", lambda *rows: None)
    cold = run_rounds(algorithm, problem, 2, COHORT)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), warm["theta"], cold["theta"])


def test_fedeq_duals_start_random_and_small(problem):
    state = make_algorithm("fedeq").init(problem, KEY)
    duals = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(state["duals"])])
    assert float(duals.std()) == pytest.approx(1e-5, rel=0.2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavgg", {}, "did you mean 'fedavg'"),
        ("fedavg", {"rho": 1.0}, "unknown option of algorithm fedavg 'rho'"),
        ("fedavg", {"epochs": 1.5}, "epochs of algorithm fedavg must be of type int, .*got 1.5"),
        ("fedavg", {"lr": "fast"}, "lr of algorithm fedavg must be of type float, above 0, got 'fast'"),
        ("fedavg", {"lr": -1.0}, "lr of algorithm fedavg must be .* above 0, got -1.0"),
        ("fedavg", {"lr": float("nan")}, "lr of algorithm fedavg must be .* above 0, got nan"),
        ("fedavg", {"lr": float("inf")}, "lr of algorithm fedavg must be .* above 0, got inf"),
        ("fedavg", {"lr": None}, "lr of algorithm fedavg must be of type float, above 0, got None"),
        ("fedavg", {"clip": "short"}, r"clip of algorithm fedavg must be of type float \| None, above 0, got 'short'"),
        ("fedavg", {"clip": float("nan")}, "clip of algorithm fedavg must be .* above 0, got nan"),
        ("fedavg", {"clip": 0}, "clip of algorithm fedavg must be .* above 0, got 0"),
        ("fedavg", {"batch_size": 0}, "batch_size of algorithm fedavg must be of type int, at least 1, got 0"),
        ("fedeq", {"rho": 0.0}, "rho of algorithm fedeq must be .* above 0, got 0.0"),
        ("fedeq", {"start": "home"}, "start of algorithm fedeq must be one of received, own"),
        ("knn_per", {"k": 0}, "k of algorithm knn_per must be .* at least 1, got 0"),
        ("knn_per", {"mix": 1.5}, "mix of algorithm knn_per must be .* 0 to 1, got 1.5"),
    ],
)
def test_bad_hyper_parameters(name, options, message):
    with pytest.raises(InputError, match=message):
        make_algorithm(name, **options)


@pytest.mark.parametrize("option", ["momentum", "weight_decay", "clip", "lr_decay"])
def test_numbers_that_may_be_none(option):
    assert getattr(make_algorithm("fedavg", **{option: None}), option) is None
    assert isinstance(getattr(make_algorithm("fedavg", **{option: 1}), option), float)  # a leaf, like every step size


def test_options_are_listed_with_types():
    maybe = dict.fromkeys(("momentum", "weight_decay", "clip", "lr_decay"), float | None)
    numbers = {"lr": float, "batch_size": int, "join_epochs": int, "epochs": int, "head_epochs": int}
    options = {name: allowed.hint for name, allowed in algorithm_options("fedrep").items()}
    assert options == numbers | maybe


POSITIVE = "batch_size clip density distill_batch_size epochs head_epochs head_lr head_steps horizon k lr rho samples"
POSITIVE = {*POSITIVE.split(), "server_clip", "server_lr", "steps", "theta"}  # of all others, 0 leaves something out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_which_hyper_parameters_may_be_zero(name):
    for option, allowed in algorithm_options(name).items():
        if allowed.hint in (int, float, int | None, float | None):
            zero = 0 if allowed.hint in (int, int | None) else 0.0
            with pytest.raises(InputError):
                make_algorithm(name, **{option: -1})
            if option in POSITIVE:
                with pytest.raises(InputError, match=f"{option} of algorithm {name} must be"):
                    make_algorithm(name, **{option: zero})
            else:
                assert getattr(make_algorithm(name, **{option: zero}), option) == zero
