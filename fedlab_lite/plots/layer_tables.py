"""Pictures of a table of layers: one number per layer, or per part of the network, ours beside the printed one."""

from collections.abc import Mapping

import numpy as np

from fedlab_lite.plots import style as figures


def layer_bars(ax, ours: Mapping[str, int], printed: Mapping[str, int], *, table: str) -> None:
    """Draw one number per layer, first layer on top: ours as a bar, the printed one as a hollow diamond.

    The axis is logarithmic. If the printed number differs from ours, its diamond is orange and labelled. Layers that
    the table does not print have no diamond.
    """
    place = np.arange(len(ours))
    ax.barh(place, list(ours.values()), 0.7, color="#56B4E9", alpha=0.5, label="ours")
    slips = {name for name, number in ours.items() if printed.get(name, number) != number}
    for spot, (name, number) in zip(place, ours.items(), strict=True):
        _number(ax, number, spot, printed.get(name, 0) <= number, "black")
        if name in slips:
            _number(ax, printed[name], spot, printed[name] > number, "#A84700")
    for wrong, color, label in ((False, "black", table), (True, "#D55E00", f"{table}, another number")):
        spots = {i: printed[name] for i, name in enumerate(ours) if name in printed and (name in slips) == wrong}
        if spots:
            figures.printed(ax, list(spots.values()), list(spots), color, label=label, markersize=5)
    ax.set_yticks(place, list(ours))
    ax.set(xscale="log", ylim=(len(ours) - 0.5, -0.5))
    ax.grid(visible=False, axis="y")


def _number(ax, number: int, spot: float, right: bool, color: str) -> None:
    """Write a number beside the end of a bar, to the right, or to the left if the right side is taken."""
    offset, align = (7, "left") if right else (-5, "right")
    style = {"textcoords": "offset points", "va": "center", "ha": align, "fontsize": 8, "color": color}
    ax.annotate(f"{number:,}", (number, spot), (offset, 0), **style)


def part_bars(ax, parts: Mapping[str, Mapping[str, int]]) -> None:
    """Draw one bar per network: millions of parameters that are sent (representation) and that stay (head)."""
    place = np.arange(len(parts))
    sent, kept = ([count[part] / 1e6 for count in parts.values()] for part in ("representation", "head"))
    ax.barh(place, sent, 0.4, color="#0072B2", label="representation, sent")
    ax.barh(place, kept, 0.4, left=sent, color="#E69F00", label="head, stays")
    for spot, count in zip(place, parts.values(), strict=True):
        ax.text(0, spot - 0.23, f" {count['representation']:,} + {count['head']:,}", va="bottom", fontsize=8)
    ax.set_yticks(place, list(parts))
    ax.set(xlabel="parameters (millions)", ylim=(len(parts) - 0.5, -0.5))
    ax.grid(visible=False, axis="y")
