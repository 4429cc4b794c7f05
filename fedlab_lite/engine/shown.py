"""Drawings on matplotlib axes: a curve with a band, and a graph of clients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedlab_lite.util import InputError


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


def draw_graph(adjacency: Any, ax, values: Any):
    """Draw clients on a circle and the edges between them, see `Graph.draw`; returns the axes."""
    import matplotlib.pyplot as plt
    import networkx
    from matplotlib.patheffects import withStroke

    if values is not None and np.shape(values) != (len(adjacency),):
        raise InputError(f"values has shape {np.shape(values)}; pass one for each of the {len(adjacency)} clients")
    ax = ax or plt.subplots()[1]
    graph = networkx.from_numpy_array(np.asarray(adjacency))
    place = networkx.circular_layout(graph)
    colour = "#56B4E9" if values is None else np.asarray(values)
    networkx.draw_networkx_nodes(graph, place, ax=ax, node_color=colour, edgecolors="black")
    networkx.draw_networkx_edges(graph, place, ax=ax, edge_color="#999999")
    for text in networkx.draw_networkx_labels(graph, place, ax=ax, font_size=9).values():
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax
