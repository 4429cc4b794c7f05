"""Optimisers as arguments: of the clients, of the server, wrong ones; and what an algorithm may inherit."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import KEY, blobs, cohort_of, common_problem, init, largest_gap, quadratic_problem, step

from fedlab_lite.algorithms import ALGORITHMS, FedAvg, FedBABU, Local, algorithm_options, fedopt, make_algorithm
from fedlab_lite.engine import Algorithm, train
from fedlab_lite.runs import Settings
from fedlab_lite.util import InputError

COHORT = jnp.array([0, 2, 3])
LR = 0.1
ADAM = optax.adam(0.01)
SERVER = [name for name, cls in ALGORITHMS.items() if "server_optimizer" in {field.name for field in fields(cls)}]


def plain(name):
    """An algorithm with one step size for all that a client trains by gradients, for one epoch."""
    cls = ALGORITHMS[name]
    return make_algorithm(
        name, epochs=1, **dict.fromkeys(cls.step_sizes, LR), **({"k": 5} if name == "knn_per" else {})
    )


@pytest.fixture(scope="class")
def start(name):
    """A first state, and what a round without optimisers makes of it."""
    problem, algorithm = common_problem(name), plain(name)
    state = init(algorithm, problem)
    return state, step(algorithm, problem, state, cohort_of(algorithm, problem, COHORT))


@pytest.mark.parametrize("name", ALGORITHMS, scope="class")
class TestEveryAlgorithm:
    @pytest.mark.slow
    def test_takes_an_optimizer_for_its_clients(self, name, start):
        """optax' SGD gives what the hyper-parameters give; Adam moves otherwise."""
        problem, algorithm, (before, want) = common_problem(name), plain(name), start
        cohort = cohort_of(algorithm, problem, COHORT)
        sgd = optax.sgd(LR, momentum=algorithm.momentum)  # DFedAvgM has some
        got = step(replace(algorithm, optimizer=sgd), problem, before, cohort)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)
        adam = step(replace(algorithm, optimizer=ADAM), problem, before, cohort)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(adam))
        assert largest_gap(adam, want) > 1e-3

    def test_says_so_of_an_optimizer_that_is_none(self, name):
        with pytest.raises(InputError, match=r"optimizer of \w+ is 'adam' \(str\); use None, or one such as"):
            replace(plain(name), optimizer="adam")

    def test_has_no_optimizer_among_its_settings(self, name):
        assert not [option for option in algorithm_options(name) if "optimizer" in option]
        with pytest.raises(InputError, match="unknown option"):
            Settings(algorithm=name, algorithm_options={"optimizer": ADAM})

    def test_is_one_class_away_from_the_contract_or_two(self, name):
        """What else algorithms share they call, so that one can be read in its own file and at most one other."""
        kinds = [cls for cls in ALGORITHMS[name].__mro__ if issubclass(cls, Algorithm)]
        assert len(kinds) <= 3
        assert all(sum(issubclass(base, Algorithm) for base in cls.__bases__) <= 1 for cls in kinds)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVER, scope="class")
class TestEveryServer:
    def test_sgd_at_1_is_the_plain_mean(self, name, start):
        problem, algorithm, (before, want) = common_problem(name), plain(name), start
        with_server = replace(algorithm, server_optimizer=optax.sgd(1.0))
        empty = jax.eval_shape(with_server.init, problem, KEY)["server"]  # SGD keeps nothing
        got = step(with_server, problem, before | {"server": empty}, COHORT)
        assert not jax.tree.leaves(got.pop("server"))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, want)

    def test_adam_moves_by_its_step_size_and_keeps_its_moments(self, name):
        problem, algorithm = common_problem(name), replace(plain(name), server_optimizer=ADAM)
        before = init(algorithm, problem)
        after = step(algorithm, problem, before, COHORT)
        shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) for state in (before, after)]
        assert shapes[0] == shapes[1]
        where = "params" if "params" in before else "theta"
        assert 0.009 < largest_gap(before[where], after[where]) < 0.011  # the first step of Adam is its step size
        assert largest_gap(before["server"], after["server"]) > 0


def test_who_has_a_server_that_averages():
    """Others have none, a step of their own (FedReCo), or multipliers in it (FeDEQ)."""
    averaging = {"fedavg", "fedavg_ft", "ditto", "fedper", "fedrep", "knn_per", "fedbabu", "fedpac", "fedcr", "fedrod"}
    assert set(SERVER) == averaging, "a new algorithm with `server_optimizer` is added to `averaging` here"


def test_without_a_server_optimizer_the_state_has_no_entry_for_it():
    assert init(FedAvg(), blobs()).keys() == {"params"}


def test_the_head_that_fedbabu_never_trains_has_no_moments():
    state = jax.eval_shape(FedBABU(server_optimizer=ADAM).init, blobs(), KEY)
    assert state["server"][0].mu.keys() == state["params"]["representation"].keys()


# Two clients as in test_algorithms.py: they move theta and w by 0.5 and 2.5, weights 3/4 and 1/4: the mean change is 1.
def fedavg_round(server_optimizer, rounds=1):
    problem = quadratic_problem([1.0, 5.0], (3, 1))
    algorithm = FedAvg(lr=0.5, batch_size=4, epochs=1, server_optimizer=server_optimizer)
    state = init(algorithm, problem)
    for _ in range(rounds):
        state = step(algorithm, problem, state, jnp.arange(2))
    return float(state["params"]["head"]["w"])


class TestFedOpt:
    """FedAvg with a server's optimiser is FedOpt: FedAvgM, FedAdam, FedYogi."""

    def test_momentum_by_hand(self):
        """Round 2: residuals 2 - 1 and 2 - 5 at (1, 1), changes -0.5 and 1.5, mean 0; the ball rolls on by 0.9."""
        assert fedavg_round(optax.sgd(1.0, momentum=0.9)) == pytest.approx(1.0)
        assert fedavg_round(optax.sgd(1.0, momentum=0.9), rounds=2) == pytest.approx(1.9)

    def test_a_step_of_adam_by_hand(self):
        """Delta = 1; Adam's first step, bias corrected, is eta Delta / (|Delta| + tau) = 0.1 / 1.5."""
        got = fedavg_round(optax.adam(0.1, b1=0.5, b2=0.99, eps=0.5))
        assert got == pytest.approx(0.1 / 1.5, rel=1e-4)

    def test_a_step_of_yogi_by_hand(self):
        """Its second moment starts at optax' 1e-6, to which the step adds 0.01 Delta^2 sign(Delta^2 - v)."""
        got = fedavg_round(optax.yogi(0.1, b1=0.5, b2=0.99, eps=0.5))
        assert got == pytest.approx(0.1 / (((1e-6 + 0.01) / 0.01) ** 0.5 + 0.5), rel=1e-4)

    @pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
    def test_the_papers_form_by_hand(self, kind):
        """Algorithm 2 of Reddi et al.: m from 0, v from tau^2, and nothing is corrected."""
        lr, b1, b2, tau = 0.1, 0.5, 0.9, 0.5
        x = m = 0.0
        v = tau**2
        for _ in range(3):
            change = 1 - x  # 0.5 (1 - 2 x) and 0.5 (5 - 2 x) at theta = w = x, weighted 3 to 1
            m = b1 * m + (1 - b1) * change
            square = change**2
            v = {
                "adagrad": v + square,
                "adam": b2 * v + (1 - b2) * square,
                "yogi": v - (1 - b2) * square * np.sign(v - square),
            }[kind]
            x += lr * m / (v**0.5 + tau)
        assert fedavg_round(fedopt(kind, lr, b1=b1, b2=b2, tau=tau), rounds=3) == pytest.approx(x, rel=1e-5)

    def test_rounds_without_change_move_nothing(self):
        for kind in ("adagrad", "adam", "yogi"):
            server, params = fedopt(kind, 0.1), jnp.ones(3)
            state = server.init(params)
            for _ in range(20):
                updates, state = server.update(jnp.zeros(3), state, params)
                assert not updates.any()

    def test_wrong_numbers_of_the_papers_form(self):
        with pytest.raises(InputError, match="unknown kind of server optimiser 'adma'; did you mean 'adam'"):
            fedopt("adma", 0.1)
        for options, message in (({"lr": 0.0}, "lr must be"), ({"b1": 1.0}, "b1 must be"), ({"tau": 0.0}, "tau must")):
            with pytest.raises(InputError, match=message):
                fedopt("adam", **{"lr": 0.1} | options)

    def test_a_second_step_of_adam_by_hand(self):
        """At w = theta = 0.1 / 1.5 = u: changes 0.5 (1 - 2u) and 0.5 (5 - 2u), mean 1 - u."""
        u = 0.1 / 1.5
        first = (0.25 * 1 + 0.5 * (1 - u)) / (1 - 0.5**2)
        second = (0.99 * 0.01 * 1 + 0.01 * (1 - u) ** 2) / (1 - 0.99**2)
        got = fedavg_round(optax.adam(0.1, b1=0.5, b2=0.99, eps=0.5), rounds=2)
        assert got == pytest.approx(u + 0.1 * first / (second**0.5 + 0.5), rel=1e-5)

    def test_trains(self):
        algorithm = make_algorithm(
            "fedavg", epochs=1, optimizer=optax.adam(0.02), server_optimizer=optax.adam(0.03, b2=0.99, eps=1e-3)
        )
        history, _ = train(blobs(), algorithm, num_rounds=12, cohort_size=3, eval_every=12)
        loss = history.metrics["loss"][0]
        assert loss[-1] < 0.7 * loss[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": optax.adam}, "optimizer of FedAvg is <function adam .* use None, or one such as"),
        ({"optimizer": 0.1}, r"optimizer of FedAvg is 0.1 \(float\); use None, or one such as optax.adam\(1e-3\)"),
        ({"server_optimizer": "adam"}, r"server_optimizer of FedAvg is 'adam' \(str\)"),
        ({"optimizer": ADAM, "momentum": 0.9}, "momentum of FedAvg belongs to SGD, which `optimizer` replaces"),
        ({"optimizer": ADAM, "weight_decay": 0.1}, "weight_decay of FedAvg belongs to SGD"),
        ({"optimizer": ADAM, "clip": 1.0}, "clip of FedAvg belongs to SGD.* use optax.chain"),
        ({"optimizer": ADAM, "lr_decay": 0.9}, "lr_decay of FedAvg belongs to SGD"),
    ],
)
def test_wrong_optimizers(options, message):
    with pytest.raises(InputError, match=message):
        FedAvg(**options)


def test_a_sweep_compiles_once_and_an_optimizer_is_another_program():
    problem, traced = blobs(), []
    state = init(FedAvg(), problem)

    @jax.jit
    def one_round(algorithm, problem, state):
        traced.append(algorithm)
        return algorithm.round(problem, state, problem.at(jnp.int32(0), COHORT, KEY))

    for lr in (0.1, 0.2, 0.3):
        one_round(FedAvg(lr=lr, epochs=1), problem, state)
    assert len(traced) == 1
    for epochs in (1, 2):  # the optimiser is structure, numbers of epochs still are data
        one_round(FedAvg(epochs=epochs, optimizer=ADAM), problem, state)
    assert len(traced) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "fedavg", "fedper", "dec_fedavg", "deprl", "fedreco", "fedrod"])
def test_newcomers_train_with_the_optimizer(name):
    problem = common_problem(name)
    still = replace(plain(name), optimizer=optax.set_to_zero())
    state = init(still, problem)
    for own, shared in (
        still.join(problem, state, KEY)[""],
        replace(still, join_epochs=0).join(problem, state, KEY)[""],
    ):
        for part, leaves in own.items():
            first = problem.model.init(KEY)
            want = first["head"] if part == "personal" else first[part]
            if name != "deprl" or part != "head":
                jax.tree.map(
                    lambda a, b: np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), atol=1e-6), leaves, want
                )
        assert not own.keys() & shared.keys()


def test_an_optimizer_of_a_local_client_by_hand():
    """Two epochs of one full-batch step each: the heavy ball, at rest at first."""
    problem = quadratic_problem([1.0], [2])
    algorithm = Local(batch_size=2, epochs=2, optimizer=optax.sgd(0.25, momentum=0.5))
    state = step(algorithm, problem, init(algorithm, problem), cohort_of(algorithm, problem, [0]))
    first = 0.25
    second = 0.25 * (1 - 2 * first) + 0.5 * first
    assert float(state["client_params"]["head"]["w"][0]) == pytest.approx(first + second)
