"""A swept hyper-parameter: which runs belong together, the order that it brings about, and how it is drawn."""

import math
from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import history, unlabelled

from fedlab_lite.plots import sweeps
from fedlab_lite.runs import Settings

mpl.use("agg")


def run(rho=None, **changes):
    settings = Settings() if rho is None else Settings(algorithm="fedeq", algorithm_options={"rho": rho})
    found = history([[0.1, 0.5, 0.6], [0.1, 0.7, 0.8]])
    return replace(found, metrics=found.metrics | {"loss": found.metrics["accuracy"]}, settings=settings, **changes)


def test_runs_are_found_by_column_and_value():
    runs = {"a/small": run(0.1), "a/large": run(10.0), "a/local": run(), "b/small": run(0.1)}
    found = sweeps.by_column(runs, "rho")
    assert {column: list(values) for column, values in found.items()} == {"a": [0.1, 10.0], "b": [0.1]}
    assert found["a"][10.0] is runs["a/large"]


def test_what_diverged_ends_and_is_named_in_the_panel():
    lost = run(10.0, diverged=(False, True))
    lost.metrics["loss"][1, 1:] = math.nan
    fig, ax = plt.subplots()
    sweeps.sweep_curves({0.1: run(0.1), 10.0: lost}, "accuracy", ax, scale=100)
    assert [text.get_text() for text in ax.texts] == [r"diverged: $\rho$ = 10"]
    assert np.isnan(ax.lines[1].get_ydata()).tolist() == [False, True, True]
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(70)
    fig.legend(*ax.get_legend_handles_labels())
    assert unlabelled(fig) == []
    plt.close(fig)


def test_a_federation_has_a_name_for_people():
    settings = Settings(dataset="fashion_mnist", partition="dirichlet", alpha=0.3, num_clients=100)
    assert sweeps.federation(settings) == "Fashion-MNIST\n100 clients, Dirichlet 0.3"
    assert sweeps.federation(Settings(num_clients=3)) == "glyphs\n3 clients, by writer"
