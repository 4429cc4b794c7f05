"""A drawing on matplotlib axes: a curve with a band."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def mean_and_band(ax, rounds: np.ndarray, values: np.ndarray, style: Mapping[str, Any]) -> None:
    """Plot the mean of `values [S, E]` over seeds as a line, with a band of one standard deviation for several seeds.

    Args:
      ax: axes of matplotlib.
      style: 'color', and optionally 'label', 'marker' and 'linestyle'.

    Example:
      >>> import matplotlib.pyplot as plt
      >>> _, ax = plt.subplots()
      >>> mean_and_band(ax, np.arange(2), np.array([[0.25, 0.5], [0.75, 1.0]]), {"color": "black"})
      >>> ax.lines[0].get_ydata().tolist()
      [0.5, 0.75]
    """
    mean = values.mean(axis=0)
    ax.plot(rounds, mean, markevery=max(1, len(mean) // 8), **style)
    if len(values) > 1:
        std = values.std(axis=0, ddof=1)
        ax.fill_between(rounds, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
