"""Noise and its cost: FedReCo's numbers, composition, inverses, and what is refused."""

import math
import sys

import pytest

from fedlab_lite.engine import epsilon_of, gaussian_noise_multiplier, noise_multiplier_for
from fedlab_lite.util import InputError


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


def test_the_number_of_clients_bounds_delta_and_changes_no_number():
    assert epsilon_of(2.0, 0.04, clients=20) == epsilon_of(2.0, 0.04)
    assert noise_multiplier_for(2.0, 0.04, clients=20) == noise_multiplier_for(2.0, 0.04)


def test_the_classical_rule_asks_for_more_noise_than_is_needed():
    for epsilon in (0.05, 0.5, 0.99):
        assert gaussian_noise_multiplier(epsilon, 1e-5) > noise_multiplier_for(epsilon, 1e-5)


@pytest.mark.parametrize(
    ("call", "values", "message"),
    [
        (gaussian_noise_multiplier, {"epsilon": 0.0, "delta": 0.1}, "epsilon must be .* above 0, got 0.0"),
        (gaussian_noise_multiplier, {"epsilon": 1.0, "delta": 0.1}, "holds for epsilon < 1, not 1.0; use noise_mult"),
        (gaussian_noise_multiplier, {"epsilon": 0.5, "delta": 1.0}, "delta must be .* above 0 and below 1, got 1.0"),
        (noise_multiplier_for, {"epsilon": float("nan"), "delta": 0.1}, "epsilon must be .* above 0, got nan"),
        (noise_multiplier_for, {"epsilon": 1.0, "delta": 0.0}, "delta must be .* above 0 and below 1, got 0.0"),
        (noise_multiplier_for, {"epsilon": 1.0, "delta": 0.1, "rounds": 0}, "rounds must be .* at least 1, got 0"),
        (
            epsilon_of,
            {"noise_multiplier": 1.0, "delta": 0.9, "clients": 20},
            "delta is 0.9, but with 20 clients .* 0.05",
        ),
        (noise_multiplier_for, {"epsilon": 1.0, "delta": 0.05, "clients": 20}, "it must be below 1 / 20 = 0.05"),
        (noise_multiplier_for, {"epsilon": 1.0, "delta": 0.01, "clients": 0}, "clients must be .* at least 1, got 0"),
        (epsilon_of, {"noise_multiplier": 0.0, "delta": 0.1}, "noise_multiplier must be .* above 0, got 0.0"),
        (epsilon_of, {"noise_multiplier": 1.0, "delta": -0.1}, "delta must be .* above 0 and below 1, got -0.1"),
        (noise_multiplier_for, {"epsilon": math.inf, "delta": 0.1}, "epsilon must be .* above 0, got inf"),
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
