"""What notebooks show: a curve with a band, a graph of clients, and the HTML card of a history."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedlab_lite.util import InputError
from fedlab_lite.util.text import html

CARD = (190, 90)  # pixels of one curve on a card


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


def numbers_in_words(numbers: Sequence[int]) -> str:
    """Seeds as short text, with ranges.

    >>> numbers_in_words((0, 1, 2)), numbers_in_words((3,)), numbers_in_words((1, 5))
    ('0-2', '3', '1, 5')
    """
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and tuple(numbers) == tuple(range(first, last + 1)):
        return f"{first}-{last}"
    return ", ".join(map(str, numbers))


def mean_and_std(values: np.ndarray) -> str:
    """The mean over seeds as text; for several seeds plus/minus one standard deviation.

    >>> mean_and_std(np.array([0.5])), mean_and_std(np.array([0.25, 0.75])), mean_and_std(np.array([np.nan]))
    ('0.5', '0.5 ± 0.3536', 'nan')
    """
    said = f"{values.mean():.4g}"
    return said if len(values) == 1 or not np.isfinite(values).all() else f"{said} ± {values.std(ddof=1):.4g}"


def svg_curve(rounds: np.ndarray, values: np.ndarray, name: str, colour: str) -> str:
    """The mean of `values [S, E]` over the rounds as an inline SVG, with its smallest and its largest value.

    Values that are not finite are left out. If no value is finite, the picture says so.

    >>> "no finite value" in svg_curve(np.arange(2), np.full((1, 2), np.nan), "loss", "black")
    True
    """
    width, height, edge, top = *CARD, 6, 16
    mean = values.mean(axis=0, dtype=float)
    shown = np.isfinite(mean)
    text = f'<text x="{edge}" y="12" fill="currentColor" font-size="11">{html(name)}'
    if shown.any():
        low, high = mean[shown].min(), mean[shown].max()
        x = edge + (width - 2 * edge) * (rounds - rounds[0]) / max(1, rounds[-1] - rounds[0])
        y = top + edge + (height - top - 2 * edge) * (1 - (mean - low) / (high - low or 1.0))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[shown], y[shown], strict=True))
        text += f": {low:.3g} to {high:.3g}</text>"
        text += f'<polyline points="{points}" fill="none" stroke="{html(colour)}" stroke-width="1.5"/>'
    else:
        text += ": no finite value</text>"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{text}</svg>'


def card(title: str, lines: Mapping[str, str], curves: Sequence[str]) -> str:
    """An HTML card: a title, curves side by side, and a table of names and texts; all text is escaped.

    >>> card("a < b", {"loss": "0.1"}, [])[:34]
    '<div><div><b>a &lt; b</b></div><di'
    """
    rows = "".join(
        f'<tr><td style="text-align:left">{html(name)}</td><td style="text-align:left">{html(text)}</td></tr>'
        for name, text in lines.items()
    )
    return f"<div><div><b>{html(title)}</b></div><div>{''.join(curves)}</div><table>{rows}</table></div>"
