"""Rank correlations, and where there is none."""

import math

import numpy as np

from fedlab_lite.analysis import rank_correlation


def test_rank_correlation_is_nan_where_nothing_can_be_ranked():
    falls, level = [np.array([3.0]), np.array([2.0]), np.array([1.0])], [np.array([1.0])] * 3
    assert rank_correlation([1, 5, 10], falls).tolist() == [-1.0]
    assert math.isnan(rank_correlation([1, 5, 10], level)[0])
    assert math.isnan(rank_correlation([1, 5, 10], [*falls[:2], np.array([math.nan])])[0])
