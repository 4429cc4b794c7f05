"""The regime check: a paper's rivals should come out here in the order that the paper prints for these data.

Where they do not, the data or their size are another regime, and a comparison of two methods there says little of the
paper. Each item is held against its own printed table, and against those that the paper's TOML names as `rivals`. Of a
table, the columns of the same data count, or of those that the data stand for.
"""

import itertools
from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np

from fedlab_lite.engine import History
from fedlab_lite.papers import presets
from fedlab_lite.papers.names import MOMENTS, plain_name
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.statistics import Comparison, metric_at
from fedlab_lite.util import files

APART = 5.0  # points; rivals this far apart in print should come out in the same order here
OTHERWISE = "rivals are not in the paper's order: "
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
    here = of_runs(histories, moment)
    found = checked(item, here, printed, moment)
    for stem in presets.load(item.paper).get("rivals", ()):
        if stem != item.stem:
            table = Item(item.paper, stem)
            for each in (here, of_result(table, preset, moment)):
                for data, (pairs, said) in checked(table, each, presets.published(*table), moment).items():
                    if data in found:
                        found[data] = max(found[data][0], pairs), found[data][1] or said
    return found


def in_words(
    item: Item,
    preset: str,
    histories: Mapping[str, History],
    printed: Iterable[Mapping],
    comparisons: Iterable[Comparison],
) -> list[str]:
    """What `order` finds at the moment of these comparisons, in a sentence per data set; nothing at `quick`."""
    if preset == "quick":
        return []
    moment, result = next((each.moment for each in comparisons if each.moment), ""), []
    for data, (pairs, said) in order(item, preset, histories, printed, moment).items():
        count = f"{pairs} pair{'s' * (pairs > 1)} of rivals stand as in print" if pairs else "no two rivals to check"
        result.append(said or f"{plain_name(data)}: {count}")
    return result


def checked(item: Item, here: Accuracies, printed: Iterable[Mapping], moment: str = "") -> dict[str, tuple[int, str]]:
    """As `order`, for the printed table of one item."""
    all_data, found = by_method(printed), {}
    own, when = item.paper.removeprefix("fl_"), f" {MOMENTS[moment]}" if moment else ""
    for data, methods in here.items():
        found[data] = 0, ""
        columns = columns_on(item, {column for values in all_data.values() for column in values}, data)
        table = {m: {each: row[each] for each in columns if each in row} for m, row in all_data.items()}
        rivals = [method for method in table if method in methods and not method.startswith(own)]
        for better, worse in itertools.permutations(rivals, 2):
            gaps, ours = (_gaps(each[better], each[worse]) for each in (table, methods))
            if not (gaps and ours and min(gaps) > 0 and np.mean(gaps) >= APART):
                continue
            pairs, said = found[data]
            if (ahead := float(np.mean(ours))) < -1:
                behind = f"{-ahead:.0f} point{'s' * (ahead < -1.5)} behind {plain_name(worse)}"
                pair = f"on {plain_name(data)}{when} {plain_name(better)} is {behind}"
                said = f"{OTHERWISE}{pair}, where {presets.title(item)[0]} prints {np.mean(gaps):.0f} ahead"
            found[data] = pairs + 1, said
    return found


def columns_on(item: Item, columns: Iterable[str], data: str) -> list[str]:
    """The columns of an item's printed table that are of these data, or of those that they stand for.

    >>> columns_on(Item("deprl", "tab01_accuracy"), ["cifar10_ring_0.3", "harbox_ring_0.3"], "motion")
    ['harbox_ring_0.3']
    """
    wanted, known = stands_for(item, data), _data_of_columns(item)

    def same(column: str) -> bool:
        named = f"{column.replace('/', '_')}_".startswith(f"{wanted}_")
        return known[column] == wanted if column in known else named

    return sorted(filter(same, columns))


def stands_for(item: Item, data: str) -> str:
    """The paper's data set in whose place these data are; the same if they are the paper's own."""
    return presets.load(item.paper).get("stands_for", {}).get(data, data)


@cache
def _data_of_columns(item: Item) -> dict[str, str]:
    """The data set of each column of runs at the paper's settings."""
    return {name.rpartition("/")[0]: run.dataset for name, run in presets.settings(*item, "paper").items()}


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
