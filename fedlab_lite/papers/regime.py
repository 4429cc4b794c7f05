"""The regime check: a paper's rivals should come out here in the order that the paper prints.

Where they do not, the data or their size are another regime, and a comparison of two methods there says little of the
paper. Each item is held against its own printed table, and against those that the paper's TOML names as `rivals`.
"""

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from fedlab_lite.engine import History
from fedlab_lite.papers import presets
from fedlab_lite.papers.names import plain_name
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.statistics import metric_at
from fedlab_lite.util import files

APART = 5.0  # points; rivals this far apart in print should come out in the same order here
Accuracies = dict[str, dict[str, dict[str, float]]]  # data set -> method -> column -> percent


def order(
    item: Item, preset: str, histories: Mapping[str, History], printed: Iterable[Mapping], moment: str = ""
) -> dict[str, tuple[int, str]]:
    """By data set: the number of pairs of rivals whose order was checked, and a sentence if one pair is reversed.

    A pair counts if one is ahead in every printed column, by `APART` points on average. It is reversed if that one is
    behind here by more than one point.

    Args:
      moment: at which decentralised rivals are judged, 'mixed' or 'trained'; '': each at its own.
    """
    own, here = item.paper.removeprefix("fl_"), of_runs(histories, moment)
    found = checked(here, printed, own)
    for stem in presets.load(item.paper).get("rivals", ()):
        if stem != item.stem:
            rows = presets.published(item.paper, stem)
            for each in (here, of_result(Item(item.paper, stem), preset, moment)):
                for data, (pairs, said) in checked(each, rows, own).items():
                    if data in found:
                        found[data] = max(found[data][0], pairs), found[data][1] or said
    return found


def in_words(found: Mapping[str, tuple[int, str]]) -> list[str]:
    """What `order` found, in a sentence per data set.

    >>> in_words({"cifar10": (3, ""), "digits": (0, "")})
    ['CIFAR-10: 3 pairs of rivals stand as in print', 'digits: no two rivals to check']
    """
    result = []
    for data, (pairs, said) in found.items():
        count = f"{pairs} pair{'s' * (pairs > 1)} of rivals stand as in print" if pairs else "no two rivals to check"
        result.append(said or f"{plain_name(data)}: {count}")
    return result


def checked(here: Accuracies, printed: Iterable[Mapping], own: str) -> dict[str, tuple[int, str]]:
    """As `order`, for one table of accuracies; `own` is the paper's method, which is not a rival."""
    table, found = by_method(printed), {}
    for data, methods in here.items():
        found[data] = 0, ""
        rivals = [method for method in table if method in methods and not method.startswith(own)]
        for better, worse in itertools.permutations(rivals, 2):
            gaps, ours = (_gaps(each[better], each[worse]) for each in (table, methods))
            if not (gaps and ours and min(gaps) > 0 and np.mean(gaps) >= APART):
                continue
            pairs, said = found[data]
            if (ahead := float(np.mean(ours))) < -1:
                behind = f"{-ahead:.0f} point{'s' * (ahead < -1.5)} behind {plain_name(worse)}"
                pair = f"on {plain_name(data)} {plain_name(better)} is {behind}, in print {np.mean(gaps):.0f} ahead"
                said = f"rivals are not in the paper's order: {pair}"
            found[data] = pairs + 1, said
    return found


def of_runs(histories: Mapping[str, History], moment: str = "") -> Accuracies:
    """The accuracies of runs that are named 'column/method'."""
    here: Accuracies = {}
    for name, run in histories.items():
        metric = metric_at(run, run.headline, moment)
        known = run.settings and run.headline == "accuracy" and metric in run.metrics
        if known and np.isfinite(final := run.final(metric)).all():
            column, _, method = name.rpartition("/")
            here.setdefault(run.settings.dataset, {}).setdefault(method, {})[column] = 100 * float(final.mean())
    return here


def of_result(item: Item, preset: str, moment: str = "") -> Accuracies:
    """The accuracies of a table's committed result at this preset; none if there is no such result."""
    try:
        result = files.read_json(files.figures_dir() / item.paper / f"{item.stem}.json")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    here: Accuracies = {}
    for name, run in presets.settings(*item, preset).items() if result["preset"] == preset else ():
        kinds = (f"{name}/{moment}", name, f"{name}/accuracy")
        value = next((result["metrics"][each]["mean"] for each in kinds if each in result["metrics"]), None)
        if value is not None:
            column, _, method = name.rpartition("/")
            here.setdefault(run.dataset, {}).setdefault(method, {})[column] = value
    return here


def by_method(rows: Iterable[Mapping]) -> dict[str, dict[str, float]]:
    """Printed accuracies named 'column/method', by method and column."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if "accuracy" in row["name"] + row["where"] and not row["name"].endswith("±"):
            column, _, method = row["name"].removesuffix("/accuracy").rpartition("/")
            found.setdefault(method, {})[column] = row["value"]
    return found


def _gaps(one: Mapping[str, float], other: Mapping[str, float]) -> list[float]:
    return [one[column] - other[column] for column in one if column in other]
