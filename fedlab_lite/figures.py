"""The look of the figures, and `save_figure`: what a notebook drew and measured, as files that say how they were made.

Colours are Okabe and Ito's, which the colour-blind can tell apart; each algorithm has its own colour, marker and line
throughout the suite, so a print in grey can be read too. matplotlib and pandas are imported where they are used.
"""

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlab_lite import files, papers, store
from fedlab_lite.errors import CorruptFileError, InputError, choose
from fedlab_lite.experiment import run_names
from fedlab_lite.history import History
from fedlab_lite.settings import Settings
from fedlab_lite.training import describe_machine

LOOKS = {  # name: label, colour, marker, line
    "local": ("Local", "#999999", "v", ":"),
    "fedavg": ("FedAvg", "#000000", "o", "-"),
    "fedavg_ft": ("FedAvg + FT", "#E69F00", "s", "--"),
    "fedopt": ("FedOpt", "#7A5195", "x", "--"),
    "ditto": ("Ditto", "#0072B2", "P", "-."),
    "fedper": ("FedPer", "#56B4E9", "^", "--"),
    "fedrep": ("FedRep", "#009E73", "D", "-."),
    "knn_per": ("kNN-Per", "#CC79A7", "X", ":"),
    "fedeq": ("FeDEQ", "#D55E00", "*", "-"),
    "dec_fedavg": ("DecFedAvg", "#444444", "8", "-"),
    "dec_fedprox": ("DecFedProx", "#B87900", "d", "--"),
    "dfedavgm": ("DFedAvgM", "#4FA3D1", "<", "-."),
    "dfedadmm": ("DFedADMM", "#00664B", ">", ":"),
    "cmfd": ("CMFD", "#00497A", "h", "--"),
    "fedf_admm": ("FedF-ADMM", "#CC3311", "H", "-"),
    "fedeq_own": ("FeDEQ (line 9 as printed)", "#8C3D00", "p", "--"),
}
MODEL_LOOKS = {  # where one algorithm trains several models
    "mlp": ("MLP", "#0072B2", "o", "-"),
    "deq_mlp": ("DEQ-MLP", "#D55E00", "s", "--"),
}
_OTHERS = [("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":")]


class Saved(NamedTuple):
    """The files of a result, and a sentence where they lie and why there."""

    svg: Path
    png: Path
    json: Path
    note: str


def use_style() -> None:
    """Make matplotlib draw as all our figures are drawn."""
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).with_name("style.mplstyle"))


def heading(
    preset: str,
    runs: Mapping[str, Settings] | None = None,
    *,
    source: str | None = None,
    seeds: Sequence[int] | None = None,
) -> str:
    """The line that a notebook prints first: versions, device, preset, data, seeds (those of `runs`, or as given)."""
    here, runs = describe_machine(), list((runs or {}).values())
    versions = ", ".join(f"{name} {here['versions'][name]}" for name in ("jax", "flax", "fedlab_lite"))
    source = source or ", ".join(sorted({run.dataset for run in runs}))
    seeds = seeds or sorted({seed for run in runs for seed in run.seeds})
    return f"{versions} · {here['device']} · preset {preset} · data {source} · seeds {', '.join(map(str, seeds))}"


def look(name: str, position: int = 0) -> dict[str, str]:
    """'label', 'color', 'marker', 'linestyle' of an algorithm; of anything else by its position in the figure.

    >>> look("fedeq")["color"], look("mlp", 1)["label"]
    ('#D55E00', 'MLP')
    """
    label, *rest = (LOOKS | MODEL_LOOKS).get(name, (name, *_OTHERS[position % len(_OTHERS)]))
    return dict(zip(("label", "color", "marker", "linestyle"), (label, *rest), strict=True))


def curves(
    histories: Mapping[str, History],
    metric: str = "accuracy",
    ax=None,
    *,
    scale: float = 1.0,
    labels: Mapping[str, str] | None = None,
):
    """One line a run over communication rounds: the mean over seeds, and plus/minus one standard deviation as a band.

    Args:
      scale: factor on the values (100 for percent).
      labels: legend texts where the name will not do.

    Returns: the axes. Raises `InputError` if a run lacks the metric.
    """
    import matplotlib.pyplot as plt

    ax = ax or plt.subplots()[1]
    for position, (name, history) in enumerate(histories.items()):
        if metric not in history.metrics:
            raise InputError(f"run {name!r} has no metric {metric!r}; it has {', '.join(sorted(history.metrics))}")
        values = scale * history.metrics[metric]
        style = look(name.rpartition("/")[2], position)
        style["label"] = (labels or {}).get(name, style["label"])
        mean = values.mean(axis=0)
        ax.plot(history.rounds, mean, markevery=max(1, len(mean) // 8), **style)
        if len(values) > 1:
            std = values.std(axis=0, ddof=1)
            ax.fill_between(history.rounds, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
    ax.set(xlabel="communication round", ylabel=metric)
    ax.legend()
    return ax


def device_curves(history: History, ax, *, scale: float = 100.0) -> None:
    """Every client's accuracy over the rounds as a thin line, their mean as a thick black one; the first seed's.

    Args:
      scale: factor on the values (100: percent).
    """
    import matplotlib as mpl

    clients = scale * history.client_curves[0].T
    for curve, colour in zip(clients, mpl.colormaps["turbo"](np.linspace(0.05, 0.95, len(clients))), strict=True):
        ax.plot(history.rounds, curve, color=colour, linewidth=0.8, alpha=0.7)
    ax.plot(history.rounds, clients.mean(axis=0), color="black", linewidth=2)
    ax.set(xlabel="communication round")


def client_distribution(histories: Mapping[str, History], ax=None, *, scale: float = 100.0):
    """Every client's accuracy at the end, of all seeds: a violin a run, named beside it, in it the median and half.

    Args:
      scale: factor on the values (100: percent).

    Returns: the axes.

    >>> client_distribution(histories, ax).set(xlabel="each client at the end (%)")  # doctest: +SKIP
    """
    import matplotlib.pyplot as plt
    import seaborn

    ax = ax or plt.subplots()[1]
    looks = [look(name.rpartition("/")[2], position) for position, name in enumerate(histories)]
    found = [run.client_accuracy.ravel() for run in histories.values()]
    names = np.repeat(list(histories), [len(values) for values in found])
    seaborn.violinplot(  # boxplot calls what matplotlib 3.13 will not have
        x=scale * np.concatenate(found),
        y=names,
        hue=names,
        palette=[style["color"] for style in looks],
        cut=0,
        density_norm="width",
        inner="box",
        inner_kws={"color": "black"},
        linewidth=0.8,
        saturation=1,
        alpha=0.5,
        legend=False,
        ax=ax,
    )
    ax.set_yticks(range(len(looks)), [style["label"] for style in looks])
    ax.set(xlabel="accuracy of each client", ylabel="")
    ax.grid(visible=False, axis="y")
    return ax


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """{'mean', 'std', 'n'} of a number a seed, for `save_figure`. One seed says nothing of others: its std is None.

    >>> spread([1, 2, 3]), spread([2])
    ({'mean': 2.0, 'std': 1.0, 'n': 3}, {'mean': 2.0, 'std': None, 'n': 1})
    """
    values = np.asarray(values, float)
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"mean": float(values.mean()), "std": std, "n": len(values)}


def summary(
    histories: Mapping[str, History], metric: str = "accuracy", *, last: int = 10, scale: float = 1.0
) -> dict[str, dict[str, float | int | None]]:
    """`spread` over seeds of each run's mean over the last rounds: the `metrics` of `save_figure`."""
    return {name: spread(scale * history.final(metric, last).astype(float)) for name, history in histories.items()}


def accuracy_and_gap(histories: Mapping[str, History]) -> dict[str, dict[str, float | int | None]]:
    """'<run>/accuracy' and '<run>/gap', percent: `summary` of the last tenth of each run's rounds, at least of ten."""
    return {
        f"{name}/{measure}": summary({name: run}, metric, last=max(run.num_rounds // 10, 10), scale=100)[name]
        for measure, metric in (("accuracy", "accuracy"), ("gap", "accuracy_gap"))
        for name, run in histories.items()
    }


def match(metrics: Mapping[str, Mapping], published: Iterable[Mapping]) -> list[dict[str, Any]]:
    """Rows 'name', 'ours', 'published', 'where' of the metrics that have a published number of the same name."""
    printed = {row["name"]: row for row in published}
    return [
        {"name": name, "ours": value["mean"], "published": printed[name]["value"], "where": printed[name]["where"]}
        for name, value in metrics.items()
        if name in printed
    ]


def comparison(rows: Iterable[Mapping[str, Any]], digits: int = 2):
    """The verdict's table: ours, published, gap, holds, as a styled pandas DataFrame.

    Args:
      rows: mappings with 'name' and 'ours', and if there is one 'published' and 'holds'.
    """
    import pandas as pd

    def gap(row):
        both = isinstance(row.get("ours"), int | float) and isinstance(row.get("published"), int | float)
        return row["ours"] - row["published"] if both else None

    marks = {True: "✔", False: "✘", None: ""}
    table = pd.DataFrame(
        [
            {
                "": row["name"],
                "ours": row["ours"],
                "published": row.get("published"),
                "gap": gap(row),
                "holds": marks[None if row.get("holds") is None else bool(row["holds"])],
            }
            for row in rows
        ]
    )
    colours = {"✔": "color: #009E73", "✘": "color: #D55E00"}
    style = table.style.hide(axis="index").map(lambda mark: colours.get(mark, ""), subset=["holds"])
    return style.format(precision=digits, na_rep="–", thousands=",")


def _plain(value):
    """What JSON can hold: floats to 6 digits, None for what is not finite, lists for arrays and tuples."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def read_result(file: Path) -> dict[str, Any] | None:
    """A result's JSON, None where there is none. Raises `CorruptFileError`."""
    try:
        result = json.loads(file.read_text())
        choose("preset", result["preset"], papers.PRESETS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            f"{file} is not a result of save_figure ({error}); restore it with git, or remove it"
        ) from error
    return result


def results(folder: Path | None = None) -> list[dict[str, Any]]:
    """The JSON of every result: those in `<folder>/<paper>`, and smaller presets' in `<folder>/<preset>/<paper>`."""
    folder = folder or files.figures_dir()
    found = []
    for home in (folder, *(folder / preset for preset in papers.PRESETS)):
        for paper in papers.PAPERS:
            found += [read_result(file) for file in sorted((home / paper).glob("*.json"))]
    return found


def _provenance(histories: Sequence[History]) -> dict[str, Any]:
    if not histories:
        here = describe_machine()
        return {**here, "seconds": None, "package_version": here["versions"]["fedlab_lite"]}
    versions = histories[0].versions
    return {
        "versions": versions,
        "device": ", ".join(sorted({history.device for history in histories})),
        "seconds": sum(history.seconds for history in histories),
        "package_version": versions["fedlab_lite"],
    }


def _keep_runs(folder: Path, names: Sequence[str]) -> None:
    """Copy these runs to the figures' folder; those that no figure there needs any more go."""
    store.publish(names, folder / "runs")
    needed = {name for file in folder.glob("*.json") for name in read_result(file).get("runs", ())}
    for file in (folder / "runs").glob("*.npz"):
        if file.name.partition(".")[0] not in needed:
            file.unlink()


def save_figure(
    fig,
    paper: str,
    item: str,
    *,
    holds: bool,
    preset: str,
    metrics: Mapping[str, Mapping[str, float | int | None]],
    departures: Sequence[str] = (),
    histories: Mapping[str, History] | None = None,
    claim: str | None = None,
    data_source: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    published: Sequence[Mapping[str, Any]] | None = None,
) -> Saved:
    """Write `<figures>/<paper>/<item>.svg`, `.png` and `.json`, and print where; the same result gives the same bytes.

    A figure of a larger preset is never replaced by a smaller one: that goes to `<figures>/<preset>/<paper>/`. Beside
    the figures, in `runs/`, lie the stored runs behind them, so that they can be drawn again without training.

    Args:
      holds: whether the claim passed its test.
      metrics: name -> {'mean', 'std', 'n'}, in the unit of the published number of the same name; std 0.0 where a
        number is exact, None where its spread is not known.
      departures: how this differs from the paper; if the claim does not hold, why.
      histories: the runs behind it; versions, device and seconds are theirs, and without other word data and seeds.
      claim, published: None: the item's, from `papers`.
      parameters: the notebook's parameters as they were.

    Raises: `InputError` (unknown names, metrics without mean, std and n, a failed claim without explanation),
      `OutputError` (nothing half-written), `CorruptFileError` (an unreadable result in the place).
    """
    import matplotlib as mpl

    runs = list((histories or {}).values())
    claim = papers.item(paper, item)["claim"] if claim is None else claim
    published = papers.published(paper, item) if published is None else published
    seeds = sorted({seed for run in runs for seed in run.seeds}) if seeds is None else seeds
    data_source = ", ".join(sorted({run.data_source for run in runs})) if data_source is None else data_source
    choose("preset", preset, papers.PRESETS)
    for name, value in metrics.items():
        if set(value) != {"mean", "std", "n"}:
            raise InputError(
                f"metric {name!r} needs exactly mean, std and n, got {', '.join(sorted(value)) or 'nothing'}"
            )
    if not holds and not departures:
        raise InputError("a claim that does not hold needs an explanation: say why in `departures`")

    home, note = files.figures_dir(), ""
    existing = read_result(home / paper / f"{item}.json")
    if existing and papers.PRESETS.index(existing["preset"]) > papers.PRESETS.index(preset):
        home = home / preset
        note = f"; {files.figures_dir() / paper} keeps the figure of the larger preset {existing['preset']!r}"
        existing = read_result(home / paper / f"{item}.json")
    result = _plain(
        {
            "paper": paper,
            "item": item,
            "claim": claim,
            "holds": bool(holds),
            "preset": preset,
            "data_source": data_source,
            "parameters": parameters or {},
            "seeds": seeds,
            "metrics": metrics,
            "published": published,
            "departures": departures,
            "provenance": _provenance(runs),
        }
    )
    names = sorted({name for run in runs for name in run_names(run) if store.find(name)})
    result |= {"runs": names} if names else {}
    if existing and existing | {"provenance": None} == result | {"provenance": None}:
        result["provenance"] = existing["provenance"]  # nothing new was found: who found it first, and how fast, stays

    contents = {}
    with mpl.rc_context({"svg.hashsalt": f"{paper}/{item}"}):
        for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            fig.savefig(buffer, format=kind, metadata=metadata)
            contents[kind] = buffer.getvalue()
    text = json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    contents["json"] = f"{text}\n".encode()
    paths = {kind: files.write_atomic(home / paper / f"{item}.{kind}", content) for kind, content in contents.items()}
    _keep_runs(home / paper, names)
    note = f"{home / paper / item}.svg, .png, .json{note}"
    print(note)
    return Saved(**paths, note=note)
