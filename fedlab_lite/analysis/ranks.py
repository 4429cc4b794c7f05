"""Whether a quantity rises or falls along a sweep, by ranks."""

import math
from collections.abc import Sequence

import numpy as np


def rank_correlation(values: Sequence[float], results: Sequence[np.ndarray]) -> np.ndarray:
    """Spearman's rank correlation per seed `[S]` between the values of a sweep and their results.

    It is nan for a seed with a result that is not finite, or with the same result for all values.

    Args:
      results: one array `[S]` per value, with one number per seed.

    >>> rank_correlation([0.1, 1, 10], [np.array([3.0, 3.0]), np.array([2.0, 1.0]), np.array([1.0, 2.0])]).tolist()
    [-1.0, -0.5]
    """
    from scipy.stats import spearmanr

    def of_seed(column: np.ndarray) -> float:
        told = np.isfinite(column).all() and len(set(column.tolist())) > 1
        return round(float(spearmanr(values, column).statistic), 12) if told else math.nan

    return np.array([of_seed(column) for column in np.stack(results).astype(float).T])
