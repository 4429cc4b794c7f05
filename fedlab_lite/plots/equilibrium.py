"""The picture of `deq.report`: how fast each solver converges, and what each gradient costs and how exact it is."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedlab_lite.deq import Report
from fedlab_lite.plots import style

LINE, LETTER = 9.0, 4.5  # points: the height of a line of a label, and the width of a letter


def equilibrium_report(report: Report):
    """Draw the residual of each solver over evaluations, and the error of each gradient over its time.

    Dots of gradients have their kilobytes in their labels. The exact gradient's own residual is a dotted line.

    Returns: the figure.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedlab_lite.deq import report
      >>> layer = lambda a, x, z: jnp.tanh(a * z + x)
      >>> found = report(layer, 0.5, jnp.ones((1, 2)), jnp.zeros((1, 2)), jax.random.key(0))
      >>> [ax.get_xlabel() for ax in equilibrium_report(found).axes]
      ['evaluations of the layer', 'milliseconds, forward and backward']
    """
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 3.2), layout="constrained")
    for position, (name, trace) in enumerate(report.traces.items()):
        left.plot(np.arange(1, len(trace) + 1), trace, markersize=3, **style.look(name, position))
    left.set(xlabel="evaluations of the layer", ylabel="residual ||f(z) - z||, median", yscale="log")
    left.set_title(f"spectral radius {np.median(report.spectral_radius):.2f}", fontsize=9)
    left.legend()
    for row in report.gradients:
        right.plot(row.milliseconds, row.error, "o", color="#0072B2", markersize=5, gid="labelled")
    right.axhline(report.exact_residual, color="#777777", linestyle=(0, (1, 2)), label="left by the exact solve")
    right.set(xlabel="milliseconds, forward and backward", ylabel="relative error of the gradient", yscale="log")
    right.margins(0.1)
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1))
    fig.draw_without_rendering()  # the layout decides how near points are
    words = [f"{row.gradient}, {row.kilobytes:,.0f} kB" for row in report.gradients]
    _label(right, dict(zip(words, ((row.milliseconds, row.error) for row in report.gradients), strict=True)))
    return fig


def _label(ax: Any, points: Mapping[str, tuple[float, float]]) -> None:
    """Write a label beside each point, towards the middle; one that would cover another moves down, line by line."""
    inches = ax.figure.dpi_scale_trans.inverted()
    middle, placed = np.mean(ax.get_xlim()), []
    for label, point in points.items():
        if not np.isfinite(point).all():
            continue
        x, y = 72 * inches.transform(ax.transData.transform(point))
        width, side = LETTER * len(label), 1 if point[0] < middle else -1
        left, shift = (x + 5 if side > 0 else x - 5 - width), 2.0
        while any(left < a + b and a < left + width and abs(y + shift - c) < LINE - 1 for a, b, c in placed):
            shift -= LINE
        placed.append((left, width, y + shift))
        where = {"xytext": (5 * side, shift), "textcoords": "offset points", "ha": "left" if side > 0 else "right"}
        ax.annotate(label, point, fontsize=7, **where)
