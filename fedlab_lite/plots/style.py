"""The style of the figures: colours, curves, distributions and tables. `papers.results` writes them to disk.

`looks.toml` has the label, colour, marker and line of each algorithm. matplotlib and pandas are imported on use.
"""

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlab_lite.data import describe
from fedlab_lite.engine import MOMENTS, History, describe_machine
from fedlab_lite.runs import Settings, metric_at, moment_of
from fedlab_lite.util import InputError

# has models and variants as well
_TABLES = tomllib.loads(Path(__file__).with_name("looks.toml").read_text(encoding="utf-8"))
LOOKS = _TABLES["algorithms"]  # name: label, colour, marker, line
WIDTH = 7.0  # inches, the width of a page
_OTHERS = [("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":")]


def use_style() -> None:
    """Set matplotlib's style to that of all our figures."""
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).with_name("style.mplstyle"))


def heading(
    preset: str,
    runs: Mapping[str, Settings] | None = None,
    *,
    source: str | None = None,
    seeds: Sequence[int] | None = None,
) -> str:
    """The first line of a notebook: versions, device, preset, data and seeds (of `runs`, unless given)."""
    here, runs = describe_machine(), list((runs or {}).values())
    versions = ", ".join(f"{name} {here['versions'][name]}" for name in ("jax", "flax", "fedlab_lite"))
    source = source or ", ".join(sorted({describe(run.dataset) for run in runs}))
    seeds = seeds or sorted({seed for run in runs for seed in run.seeds})
    return f"{versions} · {here['device']} · preset {preset} · data {source} · seeds {', '.join(map(str, seeds))}"


def look(name: str, position: int = 0) -> dict[str, str]:
    """The 'label', 'color', 'marker' and 'linestyle' of an algorithm; of other names by position in the figure.

    >>> look("fedeq")["color"], look("mlp", 1)["label"]
    ('#D55E00', 'MLP')
    """
    found = next((table[name] for table in _TABLES.values() if name in table), None)
    found = found or (literal(name), *_OTHERS[position % len(_OTHERS)])
    return dict(zip(("label", "color", "marker", "linestyle"), found, strict=True))


def literal(text: str) -> str:
    r"""A name as matplotlib draws it: none of it is a formula.

    >>> literal("cost$_^$x")
    'cost\\$_^\\$x'
    """
    return text.replace("$", r"\$")


def curves(
    histories: Mapping[str, History],
    metric: str = "accuracy",
    ax=None,
    *,
    scale: float = 1.0,
    labels: Mapping[str, str] | None = None,
):
    """Draw one line per run over communication rounds: mean over seeds, with a band of ± one standard deviation.

    The line of a diverged run ends where it diverged, and the legend says so. For accuracy, the majority baseline is a
    dotted line.

    Args:
      scale: factor on the values (100 for percent).
      labels: legend texts to use in place of the standard ones.

    Returns: the axes. Raises `InputError` if a run lacks the metric.
    """
    import matplotlib.pyplot as plt

    ax = ax or plt.subplots()[1]
    for position, (name, history) in enumerate(histories.items()):
        if metric not in history.metrics:
            raise InputError(f"run {name!r} has no metric {metric!r}; it has {', '.join(sorted(history.metrics))}")
        style = look(name.rpartition("/")[2], position)
        style["label"] = (labels or {}).get(name, style["label"]) + (" (diverged)" if any(history.diverged) else "")
        history.plot(metric, ax, scale=scale, **style)
    if metric == "accuracy":
        constant_line(histories, ax, scale=scale)
    ax.set(xlabel="communication round", ylabel=metric)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend()
    return ax


def mean_and_dots(ax, places: Sequence, values: Sequence[np.ndarray], style: Mapping[str, Any]) -> None:
    """Draw a line through the means of `values`, one array of seeds per place, with one dot per seed.

    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> mean_and_dots(ax, [16, 32], [np.array([90.0, 92.0]), np.array([85.0])], {"color": "black"})
    >>> ax.lines[0].get_ydata().tolist()
    [91.0, 85.0]
    """
    ax.plot(places, [each.mean() for each in values], **style)
    for place, each in zip(places, values, strict=True):
        ax.plot([place] * len(each), each, ".", color=style["color"], markersize=3, alpha=0.7, gid="labelled")


def constant_line(histories: Mapping[str, History], ax, *, scale: float = 1.0) -> None:
    """Draw the majority baseline (`engine.majority_baseline`) as a dotted line with a legend entry."""
    levels = sorted({round(run.constant, 4) for run in histories.values() if np.isfinite(run.constant)})
    for number, level in enumerate(levels):
        label = "_nolegend_" if number else "majority baseline"
        ax.axhline(scale * level, color="#777777", linestyle=(0, (1, 2)), linewidth=1.2, label=label)


def name_diverged(ax, histories: Mapping[str, History], at: tuple[float, float] = (0.03, 0.03)) -> None:
    """Write the names of the runs that diverged into a panel, from `at` on; `curves` has them in its legend.

    Args:
      at: a place in the panel, from (0, 0), its lower left corner, to (1, 1).

    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> name_diverged(ax, {})
    >>> len(ax.texts)
    0
    """
    lost = [name for name, history in histories.items() if any(history.diverged)]
    if lost:
        text = {"transform": ax.transAxes, "fontsize": 8, "color": "#B00000"}
        ax.text(*at, f"diverged: {', '.join(lost)}", **text)


def printed(ax, x: Any, values: Any, color: Any, *, label: str = "published", **options: Any) -> None:
    """Draw published values of the same setting as hollow diamonds, with one legend entry.

    Args:
      values: in the axis' unit; None where the paper prints nothing.
    """
    style = {"marker": "D", "markersize": 7, "linestyle": "none", "markerfacecolor": "white", "markeredgewidth": 1.4}
    known = any(line.get_label() == label for line in ax.lines)
    values = np.array([np.nan if value is None else value for value in np.atleast_1d(np.array(values, object))], float)
    style |= {"markeredgecolor": color, "zorder": 4, "label": "_nolegend_" if known else label}
    ax.plot(np.atleast_1d(x), values, **style | options)


def shared_legend(fig, axes=None, **options: Any):
    """Replace the legends of all panels by one legend above the figure; each label appears once.

    Args:
      axes: the panels whose lines are named and whose legends are removed; None: all panels of the figure.
      options: of `Figure.legend`; by default `loc="outside upper center"` and `ncols=3`.

    Returns: the legend.

    Example:
      >>> import matplotlib.pyplot as plt
      >>> fig, axes = plt.subplots(1, 2, layout="constrained")
      >>> _ = [ax.plot([0, 1], label=name) for ax in axes for name in ("FedAvg", "FeDEQ")]
      >>> [text.get_text() for text in shared_legend(fig).get_texts()]
      ['FedAvg', 'FeDEQ']
    """
    axes = fig.axes if axes is None else np.ravel(axes)
    handles = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    for ax in axes:
        if legend := ax.get_legend():
            legend.remove()
    return fig.legend(handles.values(), handles.keys(), **{"loc": "outside upper center", "ncols": 3} | options)


def device_curves(history: History, ax) -> None:
    """Draw the accuracy of each client (%) as a thin line and their mean as a thick black line (first seed)."""
    import matplotlib as mpl

    clients = 100 * history.client_curves[0].T
    for curve, colour in zip(clients, mpl.colormaps["turbo"](np.linspace(0.05, 0.95, len(clients))), strict=True):
        ax.plot(history.rounds, curve, color=colour, linewidth=0.8, alpha=0.7)
    ax.plot(history.rounds, clients.mean(axis=0), color="black", linewidth=2)
    ax.set(xlabel="communication round")


def client_distribution(histories: Mapping[str, History], ax=None):
    """Draw the final accuracies (%) of all clients and seeds, one violin per run, with median and quartiles.

    Returns: the axes.

    >>> client_distribution(histories, ax).set(xlabel="each client at the end (%)")  # doctest: +SKIP
    """
    import matplotlib.pyplot as plt
    import seaborn

    ax = ax or plt.subplots()[1]
    looks = [look(name.rpartition("/")[2], position) for position, name in enumerate(histories)]
    found = [run.client_accuracy.ravel() for run in histories.values()]
    names = np.repeat(list(histories), [len(values) for values in found])
    colours = {"hue": names, "palette": [style["color"] for style in looks], "saturation": 1, "alpha": 0.5}
    shape = {"cut": 0, "density_norm": "width", "inner": "box", "inner_kws": {"color": "black"}, "linewidth": 0.8}
    # boxplot calls a function that matplotlib 3.13 removes
    seaborn.violinplot(x=100 * np.concatenate(found), y=names, legend=False, ax=ax, **colours, **shape)
    for line in ax.lines:
        line.set_gid("labelled")  # by the axis
    ax.set_yticks(range(len(looks)), [style["label"] for style in looks])
    ax.set(xlabel="accuracy of each client", ylabel="")
    ax.grid(visible=False, axis="y")
    return ax


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """The 'mean', 'std' and 'n' of one number per seed, for `save_figure`; std is None for a single seed.

    >>> spread([1, 2, 3]), spread([2])
    ({'mean': 2.0, 'std': 1.0, 'n': 3}, {'mean': 2.0, 'std': None, 'n': 1})
    """
    values = np.asarray(values, float)
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"mean": float(values.mean()), "std": std, "n": len(values)}


def summary(
    histories: Mapping[str, History], metric: str = "accuracy", *, last: int = 10, scale: float = 1.0
) -> dict[str, dict[str, float | int | None]]:
    """The `spread` over seeds of each run's mean over its last rounds, as `metrics` of `save_figure`.

    Seeds that lack the metric are left out.
    """
    found = {name: run.final(metric, last)[run.has(metric)] for name, run in histories.items()}
    return {name: spread(scale * values.astype(float)) for name, values in found.items()}


def both_moments(run: History) -> dict[str, np.ndarray]:
    """The accuracy of each seed at both moments of a round, 'mixed' and 'trained', in percent over the last ten rounds.

    Seeds and moments that were not judged are left out. Where a run has one moment only, both have its numbers.
    """
    metrics = {moment: metric_at(run, run.headline, moment) for moment in MOMENTS}
    judged = {moment: (metric, run.has(metric)) for moment, metric in metrics.items()}
    return {m: 100 * run.final(metric)[has].astype(float) for m, (metric, has) in judged.items() if has.any()}


def summary_at_moments(histories: Mapping[str, History]) -> dict[str, dict[str, float | int | None]]:
    """The `spread` over seeds at '<run>/mixed' and '<run>/trained', of runs that are judged at both moments."""
    both = {name: both_moments(run) for name, run in histories.items() if moment_of(run)}
    return {f"{name}/{moment}": spread(values) for name, found in both.items() for moment, values in found.items()}


def accuracy_and_gap(histories: Mapping[str, History]) -> dict[str, dict[str, float | int | None]]:
    """Accuracy and gap of each run in percent, over the last tenth of its rounds, at least ten.

    The keys are '<run>/accuracy' and '<run>/gap', the values those of `summary`. '<run>/trained' and
    '<run>/gap_trained' are of the moment after local training, for runs and seeds that were judged then.
    """
    measures = {"accuracy": "accuracy", "gap": "accuracy_gap"}
    measures |= {"trained": "accuracy_trained", "gap_trained": "accuracy_gap_trained"}
    found = {}
    for (measure, metric), (name, run) in itertools.product(measures.items(), histories.items()):
        if (judged := run.has(metric)).any():
            final = run.final(metric, last=max(run.num_rounds // 10, 10))
            found[f"{name}/{measure}"] = spread(100 * final[judged].astype(float))
    return found


def comparison(rows: Iterable[Mapping[str, Any]], digits: int = 2):
    """The table beside a verdict as a styled pandas DataFrame: ours, published and gap.

    Args:
      rows: mappings with 'name' and 'ours', and optionally 'published' (for the same setting) and 'holds'.
    """
    import pandas as pd

    def line(row: Mapping[str, Any]) -> dict[str, Any]:
        ours, published, holds = row["ours"], row.get("published"), row.get("holds")
        numbers = isinstance(ours, int | float) and isinstance(published, int | float)
        gap, mark = ours - published if numbers else None, "" if holds is None else "✔" if holds else "✘"
        return {"": row["name"], "ours": ours, "published": published, "gap": gap, "holds": mark}

    table = pd.DataFrame(map(line, rows))
    if not table["holds"].any():
        table = table.drop(columns="holds")
    colours = {"✔": "color: #009E73", "✘": "color: #D55E00"}
    marks = [name for name in table if name == "holds"]
    style = table.style.hide(axis="index").map(lambda mark: colours.get(mark, ""), subset=marks)
    return style.format(precision=digits, na_rep="–", thousands=",", escape="html")
