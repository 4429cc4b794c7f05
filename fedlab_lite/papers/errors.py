"""Standard errors of differences, what they leave to chance, and the smallest difference that they would show.

An error has parts: over seeds, and over clients and test rows. Each is a pair, (standard error, degrees of freedom).
Squares of standard errors add up. With three seeds one part has two degrees of freedom, so chances follow Cochran and
Cox: a quantile is the mean of the parts' t quantiles, weighted by their squares. It is never too small, unlike that of
Welch and Satterthwaite.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedlab_lite.engine import History

Part = tuple[float, float]
LEVEL = 0.05  # two-sided: equal methods get either word in at most this share of claims
LEAST = 1e-30  # smaller chances are 0


def is_share(metric: str) -> bool:
    return metric.startswith("accuracy")


def mean_error(values: np.ndarray) -> float:
    """The standard error of a mean; nan for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def combined(*parts: Part) -> Part:
    """The error of a sum of independent parts and its degrees of freedom, by Welch and Satterthwaite.

    >>> combined((3.0, 2.0), (4.0, math.inf))
    (5.0, 15.432098765432098)
    """
    error = math.hypot(*(each for each, _ in parts))
    spent = sum(each**4 / freedom for each, freedom in parts if freedom)
    return error, error**4 / spent if spent else math.inf


def quantile(tail: float, parts: Sequence[Part]) -> float:
    """The number of errors that chance exceeds with probability `tail`, to one side, after Cochran and Cox.

    >>> round(quantile(0.025, [(1.0, 2.0)]), 2), round(quantile(0.025, [(1.0, 2.0), (1.0, math.inf)]), 2)
    (4.3, 3.13)
    """
    from scipy.stats import t

    weights = np.square([error for error, _ in parts])
    if not weights.sum():
        return 0.0
    return float(np.average([t.isf(tail, freedom) for _, freedom in parts], weights=weights))


def chance(ratio: float, parts: Sequence[Part]) -> float:
    """The two-sided p value of a difference of so many errors: the inverse of `quantile`.

    >>> round(chance(4.303, [(1.0, 2.0)]), 3), round(chance(1.96, [(1.0, math.inf)]), 3)
    (0.05, 0.05)
    """
    from scipy.optimize import brentq

    def missing(log_p: float) -> float:
        return quantile(math.exp(log_p) / 2, parts) - abs(ratio)

    if not ratio:
        return 1.0
    return 0.0 if missing(math.log(LEAST)) < 0 else math.exp(brentq(missing, math.log(LEAST), 0.0))


def share_chance(hits: int, tries: int, asked: float) -> tuple[float, tuple[float, float]]:
    """The exact two-sided binomial p value of `hits` of `tries` where the share `asked` is expected.

    Returns: it, and the 95 % interval of the share by Clopper and Pearson.

    >>> p, (low, high) = share_chance(0, 3, 0.5)
    >>> p, low, round(high, 3)
    (0.25, 0.0, 0.708)
    """
    from scipy.stats import binomtest

    found = binomtest(hits, tries, min(max(asked, 0.0), 1.0))
    interval = found.proportion_ci(1 - LEVEL)
    return float(found.pvalue), (float(interval.low), float(interval.high))


def sampling_error(runs: Sequence[History], metric: str) -> Part:
    """The error of a difference of two runs over the draw of clients and of test rows, and its degrees of freedom.

    Of the headline it is the spread of the clients' own differences, which holds their test rows too. Where all clients
    share one test set its rows are a further, common draw. Of newcomers it is estimated from the training clients, as
    a run keeps their mean alone. Of a gap between two clients it is that of their rows. Of other metrics than
    accuracies it is unknown, and only seeds count. A run keeps its clients at its own moment of a round alone, so the
    error at the other moment is taken from that. Where seeds draw their own clients, it is in their spread as well.
    """
    if not is_share(metric):
        return 0.0, math.inf
    clients = [run.client_accuracy.mean(0) for run in runs]
    shares = [float(np.clip(each.mean(), 0, 1)) for each in clients]
    a_client = max(min(run.test_labels.get("a client", 1) for run in runs), 1)
    if "_gap" in metric:
        return math.sqrt(sum(2 * share * (1 - share) / a_client for share in shares)), math.inf
    if clients[0].shape == clients[1].shape:
        parts = [(mean_error(clients[0] - clients[1]), len(clients[0]) - 1)] if len(clients[0]) > 1 else []
    else:
        parts = [(mean_error(each), len(each) - 1) for each in clients if len(each) > 1]
    if "_unseen" in metric and runs[0].settings and (joined := runs[0].settings.unseen_clients):
        return combined(*((error * math.sqrt((freedom + 1) / joined), freedom) for error, freedom in parts))
    labels = runs[0].test_labels
    if labels.get("all") == labels.get("a client") or not parts:
        parts.append((math.sqrt(sum(share * (1 - share) / a_client for share in shares)), math.inf))
    return combined(*parts)
