"""Noise and budgets: FedReCo's numbers, composition, sampling, inverses, and what is refused."""

import math
import sys

import pytest

from fedlab_lite.engine import Budget
from fedlab_lite.engine.privacy import epsilon_of, gaussian_noise_multiplier, noise_multiplier_for, rounds_within
from fedlab_lite.runs import Settings, run
from fedlab_lite.util import BudgetWarning, InputError


@pytest.mark.parametrize(
    ("budget", "noise", "zcdp", "tight"),
    [((0.2, 0.1), 11.24, 11.52, 9.93), ((0.05, 0.05), 50.75, 2.21, 1.73)],
)
def test_budgets_of_fedreco(budget, noise, zcdp, tight):
    """Its Table 3 gives (epsilon, delta) of one message; what 500 of them cost is nowhere near that."""
    assert gaussian_noise_multiplier(*budget) == pytest.approx(noise, abs=0.005)
    rho = 500 / (2 * noise**2)
    assert rho + 2 * math.sqrt(rho * math.log(1e5)) == pytest.approx(zcdp, abs=0.02)  # the usual bound
    assert epsilon_of(noise, 1e-5, rounds=500) == pytest.approx(tight, abs=0.01)


def above(x):
    """The probability that a standard normal number exceeds `x`."""
    return 0.5 * math.erfc(x / math.sqrt(2))


@pytest.mark.parametrize("noise", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_epsilon_is_that_of_the_gaussian_mechanism(noise, epsilon):
    """Balle and Wang (2018), Theorem 8: the delta of a Gaussian message is known in closed form."""
    delta = above(epsilon * noise - 0.5 / noise) - math.exp(epsilon) * above(epsilon * noise + 0.5 / noise)
    assert epsilon_of(noise, delta) == pytest.approx(epsilon, rel=1e-5)
    assert noise_multiplier_for(epsilon, delta) == pytest.approx(noise, rel=1e-5)
    assert epsilon_of(noise * 3, delta, rounds=9) == pytest.approx(epsilon, rel=1e-5)


@pytest.mark.parametrize(("noise", "rate", "epsilon"), [(1.0, 0.1, 0.3), (2.0, 0.5, 0.2), (0.8, 0.02, 0.5)])
def test_epsilon_is_that_of_the_sampled_gaussian_mechanism(noise, rate, epsilon):
    """Outcomes beyond `edge` speak for the neighbour by more than epsilon; what they weigh too much is delta."""
    edge = 0.5 + noise**2 * math.log((math.exp(epsilon) - 1 + rate) / rate)
    without = above(edge / noise)
    delta = (1 - rate) * without + rate * above((edge - 1) / noise) - math.exp(epsilon) * without
    assert epsilon_of(noise, delta, sampling_rate=rate) == pytest.approx(epsilon, abs=1e-3)


def test_the_classical_rule_asks_for_more_noise_than_is_needed():
    for epsilon in (0.05, 0.5, 0.99):
        assert gaussian_noise_multiplier(epsilon, 1e-5) > noise_multiplier_for(epsilon, 1e-5)


def test_sampling_over_many_rounds():
    """DP-SGD on MNIST as in the tutorials: noise 1.3, 250 rows of 60,000, 15 epochs; Renyi accounting said 1.18."""
    epsilon = epsilon_of(1.3, 1e-5, rounds=3600, sampling_rate=250 / 60_000)
    assert 0.8 < epsilon < 1.18


def test_noise_for_a_sampled_budget_just_meets_it():
    where = {"rounds": 20, "sampling_rate": 0.2}
    noise = noise_multiplier_for(2.0, 1e-5, **where)
    assert noise < noise_multiplier_for(2.0, 1e-5, rounds=20)
    assert epsilon_of(noise, 1e-5, **where) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("rounds", [1, 2, 7, 100])
def test_rounds_that_fit_are_the_inverse_of_what_rounds_cost(rounds, rate):
    epsilon = epsilon_of(3.0, 1e-5, rounds=rounds, sampling_rate=rate)
    assert rounds_within(epsilon, 1e-5, noise_multiplier=3.0, sampling_rate=rate) == rounds
    if rate == 1:
        assert rounds_within(0.999 * epsilon, 1e-5, noise_multiplier=3.0) == rounds - 1


def test_rounds_that_fit_into_the_budgets_of_fedreco():
    """500 rounds at the noise of Table 3 cost epsilon 9.93 and 1.73; a quarter of that noise fits a 16th of them."""
    for noise, epsilon in ((11.2374, 9.94), (50.7462, 1.73)):
        assert 495 <= rounds_within(epsilon, 1e-5, noise_multiplier=noise) <= 505
        assert 30 <= rounds_within(epsilon, 1e-5, noise_multiplier=noise / 4) <= 32
    assert rounds_within(0.2, 0.1, noise_multiplier=11.2374) > 1  # the classical rule takes more noise than is needed
    assert rounds_within(0.2, 1e-5, noise_multiplier=11.2374) == 0


def test_a_budget_says_what_fits_and_what_would_do():
    budget = Budget(2.0, 1e-5, noise_multiplier=11.24)
    rounds = budget.rounds
    assert budget.spent(rounds) <= 2.0 < budget.spent(rounds + 1)
    assert (budget.spent(0), budget.affordable(0), budget.affordable(5), budget.affordable(500)) == (0, 0, 5, rounds)
    assert round(budget.spent(500), 2) == 9.93
    two = Budget(2.0, 1e-5, noise_multiplier=11.24, messages=2)
    assert two.rounds == rounds // 2
    assert two.spent(10) == budget.spent(20)
    with pytest.raises(InputError, match=r"but the budget is 0\.1; raise the noise multiplier from 1 to") as refused:
        Budget(0.1, 1e-5, noise_multiplier=1.0).affordable(3)
    noise = float(str(refused.value).rsplit(" ", 1)[1])
    assert Budget(0.1, 1e-5, noise_multiplier=noise * 1.001).affordable(3) >= 1
    with pytest.raises(InputError, match="rounds = -1: must be 0 or more"):
        budget.spent(-1)


PRIVATE = {"dataset": "digits", "partition": "iid", "num_clients": 4, "train_size": 40, "model_options": {"width": 8}}
PRIVATE |= {"message_clip": 1.0, "message_noise": 20.0, "algorithm_options": {"epochs": 1}}


def test_a_run_stops_when_its_budget_is_used_up(tmp_path, monkeypatch):
    """Two messages of a client lie 2 C apart, so the noise multiplier is half of message_noise."""
    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path))
    budget = (epsilon_of(10.0, 1e-5, rounds=3), 1e-5)
    settings = Settings(**PRIVATE, num_rounds=8, privacy_budget=budget)
    with pytest.warns(BudgetWarning, match="3 of 8 rounds fit into the privacy budget"):
        stopped = run(settings)
    assert stopped.num_rounds == 3
    assert stopped.rounds.tolist() == [0, 1, 2, 3]
    assert stopped.about["stopped"].startswith("3 of 8 rounds")
    assert run(settings).about == stopped.about  # from the store, nothing lost
    free = run(Settings(**PRIVATE, num_rounds=3))
    assert "stopped" not in free.about
    assert (free.metrics["loss"] == stopped.metrics["loss"]).all()
    assert run(Settings(**PRIVATE, num_rounds=8, privacy_budget=budget, algorithm="local")).num_rounds == 8
    with pytest.raises(InputError, match="raise the noise multiplier"):
        run(Settings(**PRIVATE, num_rounds=8, privacy_budget=(0.01, 1e-5)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"privacy_budget": (1.0,)}, r"privacy_budget must be a pair \(epsilon, delta\), got \(1.0,\)"),
        ({"privacy_budget": (1.0, 0.0)}, r"privacy_budget .* each above 0, got \(1.0, 0.0\)"),
        ({"privacy_budget": (1.0, 1.0)}, "delta of the privacy budget must .* above 0 and below 1, got 1.0"),
        ({"privacy_budget": (0.0, 0.1)}, r"privacy_budget .* each above 0, got \(0.0, 0.1\)"),
        ({"privacy_budget": (1.0, 0.1), "message_noise": None}, "needs messages with noise; set message_noise"),
        ({"privacy_budget": (1.0, 0.1), "message_noise": 0.0}, "needs messages with noise; set message_noise"),
        ({"message_clip": None}, "set message_clip as well"),
    ],
)
def test_budgets_of_a_run_that_cannot_be(options, message):
    with pytest.raises(InputError, match=message):
        Settings(**PRIVATE | options)


@pytest.mark.parametrize(
    ("call", "values", "message"),
    [
        (gaussian_noise_multiplier, {"epsilon": 0.0, "delta": 0.1}, "epsilon must be .* above 0, got 0.0"),
        (gaussian_noise_multiplier, {"epsilon": 1.0, "delta": 0.1}, "holds for epsilon < 1, not 1.0; use noise_mult"),
        (gaussian_noise_multiplier, {"epsilon": 0.5, "delta": 1.0}, "delta must be .* above 0 and below 1, got 1.0"),
        (noise_multiplier_for, {"epsilon": float("nan"), "delta": 0.1}, "epsilon must be .* above 0, got nan"),
        (noise_multiplier_for, {"epsilon": 1.0, "delta": 0.0}, "delta must be .* above 0 and below 1, got 0.0"),
        (noise_multiplier_for, {"epsilon": 1.0, "delta": 0.1, "rounds": 0}, "rounds must be .* at least 1, got 0"),
        (epsilon_of, {"noise_multiplier": 0.0, "delta": 0.1}, "noise_multiplier must be .* above 0, got 0.0"),
        (
            epsilon_of,
            {"noise_multiplier": 1.0, "delta": 0.1, "sampling_rate": 0.0},
            "sampling_rate must be .* above 0 and at most 1, got 0.0",
        ),
        (
            epsilon_of,
            {"noise_multiplier": 1.0, "delta": 0.1, "sampling_rate": 1.5},
            "sampling_rate must be .* above 0 and at most 1, got 1.5",
        ),
        (
            rounds_within,
            {"epsilon": 1.0, "delta": -0.1, "noise_multiplier": 1.0},
            "delta must be .* above 0 and below 1, got -0.1",
        ),
        (
            rounds_within,
            {"epsilon": math.inf, "delta": 0.1, "noise_multiplier": 1.0},
            "epsilon must be .* above 0, got inf",
        ),
        (Budget, {"epsilon": 1.0, "delta": 2.0, "noise_multiplier": 1.0}, "delta of the privacy budget .*, got 2.0"),
        (Budget, {"epsilon": 1.0, "delta": 0.1, "noise_multiplier": 0.0}, "noise_multiplier of .* above 0, got 0.0"),
        (
            Budget,
            {"epsilon": 1.0, "delta": 0.1, "noise_multiplier": 1.0, "messages": 0},
            "messages of the privacy budget must be of type int, at least 1, got 0",
        ),
    ],
)
def test_what_is_refused(call, values, message):
    with pytest.raises(InputError, match=message):
        call(**values)


def test_without_dp_accounting(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert gaussian_noise_multiplier(0.2, 0.1) > 11
    for call in (epsilon_of, noise_multiplier_for):
        with pytest.raises(InputError, match=r"pip install 'fedlab-lite\[privacy\]'"):
            call(1.0, 1e-5)
