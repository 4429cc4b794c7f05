"""The HTML card of a history in a notebook: curves, and a table of final numbers."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

CARD = (190, 90)  # pixels of one curve on a card


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
    text = f'<text x="{edge}" y="12" fill="currentColor" font-size="11">{escape(name)}'
    if shown.any():
        low, high = mean[shown].min(), mean[shown].max()
        x = edge + (width - 2 * edge) * (rounds - rounds[0]) / max(1, rounds[-1] - rounds[0])
        y = top + edge + (height - top - 2 * edge) * (1 - (mean - low) / (high - low or 1.0))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[shown], y[shown], strict=True))
        text += f": {low:.3g} to {high:.3g}</text>"
        text += f'<polyline points="{points}" fill="none" stroke="{escape(colour)}" stroke-width="1.5"/>'
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
        f'<tr><td style="text-align:left">{escape(name)}</td><td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in lines.items()
    )
    return f"<div><div><b>{escape(title)}</b></div><div>{''.join(curves)}</div><table>{rows}</table></div>"
