"""Standard errors and trends of training runs, for the rules of `papers.verdicts`."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedlab_lite.engine import History

LOWER = ("loss", "distance", "error", "gap", "residual")  # a metric whose name has one of these words: lower is better


def with_seeds(run: History, seeds: list[int]) -> History:
    """A run restricted to the given seeds."""
    rows = [run.seeds.index(seed) for seed in seeds]
    metrics = {name: values[rows] for name, values in run.metrics.items()}
    diverged = tuple(run.diverged[row] for row in rows)
    return replace(run, seeds=tuple(seeds), metrics=metrics, client_curves=run.client_curves[rows], diverged=diverged)


def better_higher(metric: str) -> bool:
    """Whether a higher value of a metric is better, judged by words in its name (see `LOWER`).

    >>> [better_higher(name) for name in ("accuracy_unseen", "accuracy_gap", "loss_training", "distance", "f1")]
    [True, False, False, False, True]
    """
    return not any(word in metric for word in LOWER)


def is_share(metric: str) -> bool:
    return metric.startswith("accuracy")


def finite(values: Any) -> bool:
    if isinstance(values, str | bool):
        return True
    try:
        return bool(np.isfinite(np.asarray(values, float)).all())
    except (TypeError, ValueError):
        return False


def seeds_error(values: np.ndarray) -> float:
    """The standard error of a mean; nan for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def rows_error(run: History, values: np.ndarray) -> float:
    """The standard error of a share from the random draw of test labels."""
    share = float(np.clip(values.mean(), 0, 1))
    return math.sqrt(share * (1 - share) / max(run.test_labels.get("all", 0), 1))


def error(run: History, metric: str, values: np.ndarray) -> float:
    """The standard error of one run from its draw of clients and test labels; nan except for accuracies."""
    if not is_share(metric):
        return math.nan
    clients = run.client_accuracy.mean(0)
    if metric.endswith("_gap"):  # a difference between the accuracies of two clients
        share = float(np.clip(clients.mean(), 0, 1))
        return math.sqrt(2 * share * (1 - share) / max(run.test_labels.get("a client", 0), 1))
    return math.hypot(seeds_error(clients), rows_error(run, values))


def rise(run: History, metric: str) -> float:
    """The rise of a curve in its last quarter: its slope there (mean over seeds) times the number of rounds."""
    rounds, curve = run.rounds, run.metrics[metric].mean(0)
    start = min(np.searchsorted(rounds, 0.75 * run.num_rounds), len(rounds) - 2)
    if not finite(curve[start:]):
        return math.inf
    return float(np.polyfit(rounds[start:], curve[start:], 1)[0] * run.num_rounds / 4)
