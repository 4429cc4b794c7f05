"""Differential privacy of the Gaussian mechanism: noise for a budget (epsilon, delta), and what rounds add up to.

A noise multiplier is sigma / Delta: the noise's standard deviation over the largest change that one neighbour can make
to what is sent (under clipping to norm c: c where a client is added or removed, 2 c where its rows are replaced).
dp-accounting (the extra `privacy`) does the arithmetic.
"""

import math

from fedlab_lite.errors import InputError


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Of one message, by the classical rule sqrt(2 ln(1.25 / delta)) / epsilon (Dwork and Roth 2014, Theorem A.1).

    It holds for epsilon < 1 only, and papers that say "the standard Gaussian mechanism" mean it. The least noise that
    does is less, and known for any epsilon: `noise_multiplier_for`. Raises `InputError`.

    >>> round(gaussian_noise_multiplier(0.2, 0.1), 2), round(noise_multiplier_for(0.2, 0.1), 2)
    (11.24, 2.3)
    """
    _check(epsilon=epsilon, delta=delta)
    if epsilon >= 1:
        raise InputError(f"the classical rule holds for epsilon < 1, not {epsilon}; take noise_multiplier_for")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def epsilon_of(noise_multiplier: float, delta: float, *, rounds: int = 1, sampling_rate: float = 1.0) -> float:
    """The epsilon that `rounds` messages with this noise add up to, at `delta`; exact but for rounding.

    Args:
      sampling_rate: the probability with which a neighbour takes part in a round, each drawn on its own (Poisson
        sampling); a cohort of fixed size is near to it, not the same.

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


def _sampled(noise_multiplier: float, rounds: int, sampling_rate: float):
    accounting = _accounting()
    message = accounting.PoissonSampledDpEvent(sampling_rate, accounting.GaussianDpEvent(noise_multiplier))
    return accounting.SelfComposedDpEvent(message, rounds)


def _accounting():
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise InputError("adding up privacy needs dp-accounting: pip install 'fedlab-lite[privacy]'") from error
    return dp_accounting


def _check(
    *, delta: float, epsilon: float = 1.0, noise_multiplier: float = 1.0, rounds: int = 1, sampling_rate: float = 1.0
) -> None:
    if not 0 < delta < 1:
        raise InputError(f"delta={delta}: a probability between 0 and 1, well below one over the number of clients")
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon={epsilon}: a budget is a positive number")
    if not 0 < noise_multiplier < math.inf:
        raise InputError(
            f"noise_multiplier={noise_multiplier}: without noise there is no privacy; take a positive number"
        )
    if rounds < 1:
        raise InputError(f"rounds={rounds}: at least one message is sent")
    if not 0 < sampling_rate <= 1:
        raise InputError(f"sampling_rate={sampling_rate}: a probability above 0, and 1 if everybody takes part")
