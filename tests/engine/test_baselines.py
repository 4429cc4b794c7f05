"""The answers that need no learning: one class for all clients, and each client's own commonest class."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import blobs

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.engine import has_own_models, majority_baseline, own_majority

ONE_FOR_ALL = {"fedavg"}


def labelled(train, test):
    """A problem whose clients have these labels, one row per client; -1: no row."""
    problem = blobs(num_clients=len(train), sizes=[len(row) for row in train])
    rows = {"y": np.array(train), "test_y": np.array(test)}
    sizes = {"size": (rows["y"] >= 0).sum(1), "test_size": (rows["test_y"] >= 0).sum(1)}
    filled = {name: np.maximum(values, 0) for name, values in rows.items()}
    filled |= {name.replace("y", "x"): np.zeros((*values.shape, 6), np.float32) for name, values in rows.items()}
    return replace(problem, data=replace(problem.data, **filled, **sizes))


def test_the_own_baseline_by_hand():
    """Client 0 has mostly 1, and half of its test rows are; client 1 has 2 alone, a quarter of its test rows."""
    problem = labelled([[1, 1, 0, -1], [2, 2, 2, 2]], [[1, 1, 0, 2], [2, 0, 0, 1]])
    assert own_majority(problem) == pytest.approx((0.5 + 0.25) / 2)
    assert majority_baseline(problem)[0] == pytest.approx((0.25 + 0.5) / 2)
    wrong = labelled([[0, 0], [1, 1]], [[1, 1], [1, 1]])  # one class for all is better here
    assert own_majority(wrong) == majority_baseline(wrong)[0] == 1.0


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_which_algorithms_judge_clients_with_models_of_their_own(name):
    model = {"model": "gaussian_mlp", "width": 8, "depth": 1, "features": 8, "latent": 4} if name == "fedcr" else {}
    problem = blobs(**model)
    assert has_own_models(problem, make_algorithm(name)) == (name not in ONE_FOR_ALL)
