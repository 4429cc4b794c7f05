"""Differential privacy of the Gaussian mechanism: noise for a budget (epsilon, delta), and the cost of several rounds.

A noise multiplier is sigma / Delta. Here sigma is the noise's standard deviation, and Delta is the largest change that
one neighbour can make to a message. Under clipping to norm c, Delta is c where a client is added or removed, and 2 c
where its rows are replaced. dp-accounting (the extra `privacy`) does the arithmetic.
"""

import math
from dataclasses import MISSING, dataclass
from functools import cached_property

from fedlab_lite.util import InputError
from fedlab_lite.util.fields import check_fields, check_value, ranged, rules_of


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """The noise multiplier of one message by the classical rule sqrt(2 ln(1.25 / delta)) / epsilon.

    The rule is Theorem A.1 of Dwork and Roth 2014. It holds for epsilon < 1 only. Papers that say "the standard
    Gaussian mechanism" mean it. The least sufficient noise is smaller, and known for any epsilon:
    `noise_multiplier_for`. Raises `InputError`.

    >>> round(gaussian_noise_multiplier(0.2, 0.1), 2), round(noise_multiplier_for(0.2, 0.1), 2)
    (11.24, 2.3)
    """
    _check(epsilon=epsilon, delta=delta)
    if epsilon >= 1:
        raise InputError(f"the classical rule holds for epsilon < 1, not {epsilon}; use noise_multiplier_for")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def epsilon_of(noise_multiplier: float, delta: float, *, rounds: int = 1, sampling_rate: float = 1.0) -> float:
    """The total epsilon of `rounds` messages with this noise, at `delta`; exact except for rounding.

    Args:
      sampling_rate: the probability with which a neighbour takes part in a round, drawn independently (Poisson
        sampling); a cohort of fixed size is close to it, but not the same.

    Raises: `InputError`.

    >>> round(epsilon_of(11.24, 1e-5, rounds=500), 2)
    9.93
    """
    _check(noise_multiplier=noise_multiplier, delta=delta, rounds=rounds, sampling_rate=sampling_rate)
    accounting = _accounting()
    if sampling_rate == 1:  # Gaussian messages together are one Gaussian message with less noise
        return float(accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(rounds), delta))
    accountant = accounting.pld.PLDAccountant()
    accountant.compose(_sampled(noise_multiplier, rounds, sampling_rate))
    return float(accountant.get_epsilon(delta))


def noise_multiplier_for(epsilon: float, delta: float, *, rounds: int = 1, sampling_rate: float = 1.0) -> float:
    """The least noise with which `rounds` messages stay within (epsilon, delta): the inverse of `epsilon_of`.

    Raises: `InputError`.

    >>> round(noise_multiplier_for(9.93, 1e-5, rounds=500), 2)
    11.24
    """
    _check(epsilon=epsilon, delta=delta, rounds=rounds, sampling_rate=sampling_rate)
    accounting = _accounting()
    enough = float(accounting.get_sigma_gaussian(epsilon, delta)) * math.sqrt(rounds)
    if sampling_rate == 1:
        return enough
    while epsilon_of(enough, delta, rounds=rounds, sampling_rate=sampling_rate) <= epsilon:
        enough /= 2
    return accounting.calibrate_dp_mechanism(
        accounting.pld.PLDAccountant,
        lambda noise: _sampled(noise, rounds, sampling_rate),
        epsilon,
        delta,
        accounting.ExplicitBracketInterval(enough, 2 * enough),
        tol=1e-4 * enough,
    )


def rounds_within(epsilon: float, delta: float, *, noise_multiplier: float, sampling_rate: float = 1.0) -> int:
    """The number of messages with this noise that fit into (epsilon, delta); 0: not even one.

    It is `epsilon_of` solved for `rounds`.

    Raises: `InputError`.

    >>> rounds_within(9.94, 1e-5, noise_multiplier=11.24), rounds_within(0.01, 1e-5, noise_multiplier=11.24)
    (500, 0)
    """
    _check(epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, sampling_rate=sampling_rate)

    def fit(rounds: int) -> bool:
        spent = epsilon_of(noise_multiplier, delta, rounds=rounds, sampling_rate=sampling_rate)
        return spent <= epsilon * (1 + 1e-6)  # so that `epsilon_of(..., rounds=n)` has room for n

    if not fit(1):
        return 0
    most = 1
    while fit(2 * most):
        most *= 2
    too_many = 2 * most
    while too_many - most > 1:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if fit(middle) else (most, middle)
    return most


@dataclass(frozen=True)
class Budget:
    """A client's privacy budget (epsilon, delta) for all its messages, and the noise on each message.

    Raises `InputError` for numbers out of range.

    Example:
      >>> budget = Budget(2.0, 1e-5, noise_multiplier=11.24)
      >>> budget.rounds, budget.affordable(500), round(budget.spent(20), 2)
      (31, 31, 1.55)
    """

    epsilon: float = ranged(MISSING, 0, above=True)
    delta: float = ranged(MISSING, 0, 1, above=True, below=True)  # well below one over the number of clients
    noise_multiplier: float = ranged(MISSING, 0, above=True)  # sigma / Delta of one message
    messages: int = ranged(1, 1)  # per client and round
    sampling_rate: float = ranged(1.0, 0, 1, above=True)  # see `epsilon_of`

    def __post_init__(self):
        check_fields(self, "the privacy budget")

    @cached_property
    def rounds(self) -> int:
        """The number of rounds that fit into the budget."""
        noise = {"noise_multiplier": self.noise_multiplier, "sampling_rate": self.sampling_rate}
        return rounds_within(self.epsilon, self.delta, **noise) // self.messages

    def spent(self, rounds: int) -> float:
        """The total epsilon of `rounds` rounds, at the budget's delta."""
        if rounds < 0:
            raise InputError(f"rounds = {rounds}: must be 0 or more")
        number = {"rounds": rounds * self.messages, "sampling_rate": self.sampling_rate}
        return epsilon_of(self.noise_multiplier, self.delta, **number) if rounds else 0.0

    def affordable(self, num_rounds: int) -> int:
        """The smaller of `num_rounds` and the number of rounds that fit into the budget.

        Raises `InputError` where not even one round fits; the message names a noise that is large enough.
        """
        if num_rounds and not self.rounds:
            rate = {"sampling_rate": self.sampling_rate}
            noise = noise_multiplier_for(self.epsilon, self.delta, rounds=self.messages, **rate)
            raise InputError(
                f"one round costs epsilon = {self.spent(1):.3g} at delta = {self.delta:g}, but the budget is "
                f"{self.epsilon:g}; raise the noise multiplier from {self.noise_multiplier:g} to {noise:.4g}"
            )
        return min(num_rounds, self.rounds) if num_rounds else 0


def _sampled(noise_multiplier: float, rounds: int, sampling_rate: float):
    accounting = _accounting()
    message = accounting.PoissonSampledDpEvent(sampling_rate, accounting.GaussianDpEvent(noise_multiplier))
    return accounting.SelfComposedDpEvent(message, rounds)


def _accounting():
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise InputError("privacy accounting needs dp-accounting: pip install 'fedlab-lite[privacy]'") from error
    return dp_accounting


def _check(**values: float) -> None:
    for name, value in values.items():
        check_value(name, value, *rules_of(Budget)["messages" if name == "rounds" else name])
