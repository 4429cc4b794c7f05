"""What tests of runs share: a small problem for all settings, and a count of the rounds that are computed."""

import pytest
from helpers import blobs
from recorded_runs import Recorder

from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.engine import training
from fedlab_lite.runs import runner


@pytest.fixture
def small_problem(monkeypatch):
    """Every run here trains on five ragged clients; only what the settings say besides counts."""
    monkeypatch.setattr(runner, "build_problem", lambda settings: blobs())
    monkeypatch.setitem(ALGORITHMS, "recorder", Recorder)


@pytest.fixture
def count_rounds(monkeypatch):
    """A list that grows with every computed round."""
    calls, original = [], training._round

    def counted(*args):
        calls.append(args[3])
        return original(*args)

    monkeypatch.setattr(training, "_round", counted)
    return calls
