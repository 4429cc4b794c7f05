"""The regime check: a paper's rivals should come out here in the order that the paper prints for these data.

Where they do not, the data or their size are another regime, and a comparison of two methods there says little of the
paper. Each item is held against its own printed table, and against those that the paper's TOML names as `rivals`. Of a
table, the columns of the same data count, or of those that the data stand for. Where some of these have the same
partition, the others do not count. Runs of one data set that is divided in two ways, or among other numbers of
clients, are checked apart.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedlab_lite.engine import History
from fedlab_lite.papers import presets
from fedlab_lite.papers.errors import mean_error
from fedlab_lite.papers.names import MOMENTS, plain_name
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.plots import division
from fedlab_lite.runs import Settings, algorithm_of, metric_at
from fedlab_lite.util import files

APART = 5.0  # points; rivals this far apart in print should come out in the same order here
SIDES = {"fedavg", "local"}  # clients gain from one common model where the former is ahead
OTHERWISE = "rivals are in another order than in print"


class Federation(NamedTuple):
    """A data set, how it is divided in words, and among how many clients."""

    data: str
    partition: str
    clients: int

    def __str__(self) -> str:
        return f"{plain_name(self.data)} ({self.partition}, {self.clients} clients)"


Accuracies = dict[Federation, dict[str, dict[str, tuple[float, float]]]]  # method -> column -> percent and its error


class Order(NamedTuple):
    """What was found of the order of a paper's rivals in one federation."""

    pairs: int  # that were checked
    right: int = 0  # of these, in the paper's order here, clearly or not
    said: str = ""  # the sentence on the pair that is reversed most; '': none is
    short: str = ""  # the same as a clause of a reason


Found = dict[Federation, Order]


def order(
    item: Item, preset: str, histories: Mapping[str, History], printed: Iterable[Mapping], moment: str = ""
) -> Found:
    """The number of pairs of rivals whose order was checked, and a sentence if one pair is reversed, by federation.

    A pair counts if one is ahead in every printed column, by `APART` points on average. It is reversed if that one is
    behind here by more than one point and two standard errors; of one seed, by more than `APART`. FedAvg and Local must
    be on the paper's sides of each other, by however little: they say whether clients gain from one common model.

    Args:
      moment: at which rivals are judged, 'mixed' or 'trained'; '': each at its own.
    """
    here = of_runs(histories, moment)
    found = checked(item, here, printed, moment)
    for table in tables_of_rivals(item):
        for each in (here, of_result(table, preset, moment)):
            others = checked(table, each, presets.published(*table), moment)
            for key in found:
                for other in like(key, others):
                    own = found[key]
                    most = min(own, other, key=lambda each: (-each.pairs, each.right))
                    found[key] = (own if own.said else other)._replace(pairs=most.pairs, right=most.right)
    return found


def like(key: Federation, found: Found) -> list[Order]:
    """What was found of this federation; if nothing, of those with the same data and partition."""
    return [found[key]] if key in found else [each for other, each in found.items() if other[:2] == key[:2]]


def tables_of_rivals(item: Item) -> list[Item]:
    """The tables that hold the rivals of an item's paper, without the item itself."""
    return [Item(item.paper, stem) for stem in presets.load(item.paper).get("rivals", ()) if stem != item.stem]


def in_words(
    item: Item,
    preset: str,
    histories: Mapping[str, History],
    printed: Iterable[Mapping],
    comparisons: Iterable[Comparison],
) -> list[str]:
    """What `order` finds at the moment of these comparisons: what is wrong, and how many pairs are in order."""
    if preset == "quick":
        return []
    moment = next((each.moment for each in comparisons if each.moment), "")
    found, right = order(item, preset, histories, printed, moment), {}
    wrong = {key.data for key, each in found.items() if each.said}
    for key, each in found.items():
        if not each.said:
            name = str(key) if key.data in wrong else plain_name(key.data)
            before = right.get(name, (0, 0))
            right[name] = before[0] + each.right, before[1] + each.pairs
    counted = []
    for name, (n, pairs) in right.items():
        others = ", none is clearly reversed" if n < pairs else ""
        said = f"{n} of {pairs} pairs of rivals in the paper's order{others}" if pairs else "no two rivals to check"
        counted.append(f"{name}: {said}")
    return [*(each.said for each in found.values() if each.said), *counted]


def checked(item: Item, here: Accuracies, printed: Iterable[Mapping], moment: str = "") -> Found:
    """As `order`, for the printed table of one item."""
    every, found = by_method(printed), {}
    own, when = item.paper.removeprefix("fl_"), f" {MOMENTS[moment]}" if moment else ""
    for key, methods in here.items():
        pairs, right, most, said, short = 0, 0, 0.0, "", ""
        columns = columns_on(item, {column for values in every.values() for column in values}, key.data, key.partition)
        table = {m: {each: (row[each], 0.0) for each in columns if each in row} for m, row in every.items()}
        rivals = [method for method in table if method in methods and not method.startswith(own)]
        for better, worse in itertools.permutations(rivals, 2):
            (gaps, _), (ours, error) = (_gaps(each[better], each[worse]) for each in (table, methods))
            if not (gaps and ours and min(gaps) > 0 and np.mean(gaps) >= APART):
                continue
            pairs, behind = pairs + 1, -float(np.mean(ours))
            right += behind < 0
            least = max(1.0, 2 * error) if math.isfinite(error) else APART
            if behind > max(most, 0.0 if {better, worse} == SIDES else least):
                most = behind
                points = format(max(behind, 0.1), ".0f" if behind >= 0.95 else ".1f")
                words = f"{points} point{'s' * (points != '1')} behind {plain_name(worse)}"
                pair = f"on {key}{when} {plain_name(better)} is {words}"
                said = f"{OTHERWISE}: {pair}, where {presets.title(item)[0]} prints it {np.mean(gaps):.0f} ahead"
                short = f"rivals are in another order (in print {plain_name(better)} above {plain_name(worse)})"
        found[key] = Order(pairs, right, said, short)
    return found


def columns_on(item: Item, columns: Iterable[str], data: str, partition: str = "") -> list[str]:
    """The columns of an item's printed table that are of these data, or of those that they stand for.

    Args:
      partition: in words; if the paper has columns of these data with it, the others are left out.

    >>> columns_on(Item("deprl", "tab01_accuracy"), ["cifar10_ring_0.3", "harbox_ring_0.3"], "motion")
    ['harbox_ring_0.3']
    """
    wanted, known = stands_for(item, data), _columns(item)

    def same(column: str) -> bool:
        named = f"{column.replace('/', '_')}_".startswith(f"{wanted}_")
        return known[column][0] == wanted if column in known else named

    found = sorted(filter(same, columns))
    return [column for column in found if known.get(column) == (wanted, partition)] or found


def federation(run: Settings) -> Federation:
    """The federation of a run."""
    return Federation(run.dataset, division(run), run.num_clients)


def stands_for(item: Item, data: str) -> str:
    """The paper's data set in whose place these data are; the same if they are the paper's own."""
    return presets.load(item.paper).get("stands_for", {}).get(data, data)


def about_runs(runs: Sequence[History]) -> dict[str, Any]:
    """Federation, rounds, whether seeds share a partition, and whether algorithms differ, of a comparison's runs."""
    settings = [run.settings for run in runs if run.settings]
    parts = {name: {getattr(federation(each), name) for each in settings} for name in Federation._fields}
    shared = {name: min(values) for name, values in parts.items() if len(values) == 1}
    rivals = len({each.algorithm for each in settings}) > 1
    methods = tuple(each.algorithm for each in settings)
    rounds = min((run.num_rounds for run in runs), default=0)
    one = any(len(run.seeds) > 1 and len(set(run.data_fingerprints())) == 1 for run in runs)
    return shared | {"rounds": rounds, "rivals": rivals, "methods": methods, "one_partition": one}


@cache
def _columns(item: Item) -> dict[str, tuple[str, str]]:
    """The data set and the partition of each column of runs at the paper's settings."""
    return {
        name.rpartition("/")[0]: (run.dataset, division(run)) for name, run in presets.settings(*item, "paper").items()
    }


def of_runs(histories: Mapping[str, History], moment: str = "") -> Accuracies:
    """The accuracies of runs that are named 'column/method'."""
    here: Accuracies = {}
    for name, run in histories.items():
        metric = metric_at(run, run.headline, moment)
        known = run.settings and run.headline == "accuracy" and (judged := run.has(metric)).any()
        if known and np.isfinite(final := 100 * run.final(metric).astype(float)[judged]).all():
            _add(here, name, run.settings, float(final.mean()), mean_error(final))
    return here


def of_result(item: Item, preset: str, moment: str = "") -> Accuracies:
    """The accuracies of a table's committed result at this preset; none if there is no such result, or moment."""
    try:
        result = files.read_json(files.figures_dir() / item.paper / f"{item.stem}.json")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    here: Accuracies = {}
    for name, run in presets.settings(*item, preset).items() if result["preset"] == preset else ():
        unlike = moment and algorithm_of(run).moment not in ("", moment)
        kinds = (f"{name}/{moment}", *([] if unlike else [name, f"{name}/accuracy"]))
        value = next((result["metrics"][each] for each in kinds if each in result["metrics"]), None)
        if value is not None and value["mean"] is not None:  # None: it diverged
            error = value["std"] / math.sqrt(value["n"]) if value["n"] > 1 else math.nan
            _add(here, name, run, value["mean"], error)
    return here


def _add(here: Accuracies, name: str, run: Settings, mean: float, error: float) -> None:
    column, _, method = name.rpartition("/")
    here.setdefault(federation(run), {}).setdefault(method, {})[column] = mean, error


def by_method(rows: Iterable[Mapping], kind: str = "accuracy") -> dict[str, dict[str, float]]:
    """Printed accuracies named 'column/method' or 'column/method/accuracy', by method and column.

    Args:
      kind: 'gap' for those named 'column/method/gap'.
    """
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        name = row["name"].removesuffix(f"/{kind}")
        known = name != row["name"] if kind != "accuracy" else "accuracy" in row["name"] + row["where"]
        if known and not name.endswith(("±", "/gap")):
            column, _, method = name.rpartition("/")
            found.setdefault(method, {})[column] = row["value"]
    return found


def _gaps(one: Mapping[str, tuple], other: Mapping[str, tuple]) -> tuple[list[float], float]:
    """The differences in the columns of both, and the standard error of their mean; nan if one has one seed."""
    both = [(one[column], other[column]) for column in one if column in other]
    error = math.sqrt(sum(a[1] ** 2 + b[1] ** 2 for a, b in both)) / max(len(both), 1)
    return [a[0] - b[0] for a, b in both], error
