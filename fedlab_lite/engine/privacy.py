"""Differential privacy of the Gaussian mechanism: noise for a budget (epsilon, delta), and the cost of several rounds.

A noise multiplier is sigma / Delta. Here sigma is the noise's standard deviation, and Delta is the largest change that
one neighbour can make to a message. Under clipping to norm c, Delta is c where a client is added or removed, and 2 c
where its rows are replaced. dp-accounting (the extra `privacy`) does the arithmetic.
"""

import math

from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Range, check_value

_ALLOWED = {
    "epsilon": (float, Range(0, above=True)),
    "delta": (float, Range(0, 1, above=True, below=True)),
    "noise_multiplier": (float, Range(0, above=True)),
    "rounds": (int, Range(1)),
    "clients": (int | None, Range(1)),
}


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


def epsilon_of(noise_multiplier: float, delta: float, *, rounds: int = 1, clients: int | None = None) -> float:
    """The total epsilon of `rounds` messages with this noise, at `delta`; exact except for rounding.

    Gaussian messages together are one Gaussian message with less noise.

    Args:
      clients: how many the promise is given to. `delta` must then be below 1 / clients: a mechanism that publishes the
        rows of one client, drawn at random, has the delta 1 / clients. None: not checked.

    Raises: `InputError`.

    >>> round(epsilon_of(11.24, 1e-5, rounds=500), 2)
    9.93
    """
    _check(noise_multiplier=noise_multiplier, delta=delta, rounds=rounds, clients=clients)
    return float(_accounting().get_epsilon_gaussian(noise_multiplier / math.sqrt(rounds), delta))


def noise_multiplier_for(epsilon: float, delta: float, *, rounds: int = 1, clients: int | None = None) -> float:
    """The least noise with which `rounds` messages stay within (epsilon, delta): the inverse of `epsilon_of`.

    Args and errors: as `epsilon_of`.

    >>> round(noise_multiplier_for(9.93, 1e-5, rounds=500), 2)
    11.24
    """
    _check(epsilon=epsilon, delta=delta, rounds=rounds, clients=clients)
    return float(_accounting().get_sigma_gaussian(epsilon, delta)) * math.sqrt(rounds)


def _accounting():
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise InputError("privacy accounting needs dp-accounting: pip install 'fedlab-lite[privacy]'") from error
    return dp_accounting


def _check(*, delta: float, clients: int | None = None, **values: float) -> None:
    for name, value in (values | {"delta": delta, "clients": clients}).items():
        check_value(name, value, *_ALLOWED[name])
    if clients is not None and delta >= 1 / clients:
        raise InputError(
            f"delta is {delta:g}, but with {clients} clients it must be below 1 / {clients} = {1 / clients:.3g}: "
            "publishing one client's rows has that delta, too"
        )
