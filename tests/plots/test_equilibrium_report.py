"""The picture of a report on a layer."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from helpers import unlabelled

from fedlab_lite.deq import GradientRow, Report, SolverRow
from fedlab_lite.plots import equilibrium_report

mpl.use("agg")


def test_every_solver_and_gradient_is_drawn():
    traces = {"fixed_point": np.array([1.0, 0.5]), "anderson": np.array([1.0, np.nan])}
    solvers = tuple(SolverRow(name, 2.0, 0.1, 0.5) for name in traces)
    gradients = (
        GradientRow("implicit", "anderson", 1e-4, 12.0, 0.3),
        GradientRow("one_step", "anderson", 0.2, 3.0, 0.1),
    )
    fig = equilibrium_report(Report(np.array([0.5, 0.7]), 1e-6, solvers, gradients, traces))
    left, right = fig.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == list(traces)
    assert left.get_title() == "spectral radius 0.60"
    assert [text.get_text() for text in right.texts] == ["implicit, 12 kB", "one_step, 3 kB"]
    assert unlabelled(fig) == []
    plt.close(fig)


def test_labels_of_near_points_do_not_cover_each_other():
    traces = {"anderson": np.array([1.0, 0.5])}
    names = ("implicit", "one_step", "phantom", "neumann", "shine")
    rows = tuple(GradientRow(name, "anderson", 1e-3 * (1 + k % 2), 100.0, 0.3) for k, name in enumerate(names))
    wide = GradientRow("reversible", "its own", 0.5, 70.0, 2.0)
    report = Report(np.array([0.5]), 1e-6, (SolverRow("anderson", 2.0, 0.1, 0.5),), (*rows, wide), traces)
    fig = equilibrium_report(report)
    fig.draw_without_rendering()
    boxes = [text.get_window_extent() for text in fig.axes[1].texts]
    assert len(boxes) == 6
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])
    assert max(box.x1 for box in boxes) <= fig.bbox.x1
    plt.close(fig)
