"""How close to the paper a result is, and so what may be said of the paper.

| scope      | means                                                     | words for agrees, differs        |
| ---        | ---                                                       | ---                              |
| `counted`  | printed text or arithmetic; nothing is trained            | reproduced, contradicted         |
| `paper`    | the paper's data, network, sizes, rounds and step sizes   | reproduced, contradicted         |
| `reduced`  | the paper's data and network, smaller                     | agrees here, differs here        |
| `stand-in` | other data or another network                             | agrees here, differs here        |

Scope and distance are computed from the settings of the runs and of the preset `paper`. At `quick` a result is `seen`:
it says nothing of the paper.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

from fedlab_lite.algorithms import algorithm_defaults
from fedlab_lite.engine import History
from fedlab_lite.nn import model_defaults
from fedlab_lite.papers import presets, regime
from fedlab_lite.papers.names import plain_name
from fedlab_lite.papers.outcome import Verdict, adjusted_p, again, kindest, shortened
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.plots import look
from fedlab_lite.runs import Settings
from fedlab_lite.util import InputError

SCOPES = ("counted", "paper", "reduced", "stand-in")
FIRM = {"agrees": "reproduced", "differs": "contradicted"}  # at scope counted and paper
# fields that are no distance, at any value
UNCOUNTED = {"seeds": (0,), "eval_every": 1, "data_seed": 0, "data_per_seed": False}
USED_BY = {  # fields that partitions of some kinds alone read
    **{"alpha": {"dirichlet", "dirichlet_capped"}, "classes_per_client": {"by_label", "by_class_cycle"}},
}
KINDS = {"accuracy": "accuracy", "accuracy_gap": "gap"}  # metric -> what a printed row is of
HERE = {"agrees": "agrees here", "differs": "differs here"}
WORDS = ("reproduced", "contradicted", "agrees here", "differs here", "undecided", "misprint", "seen")


@cache
def _paper(item: Item) -> tuple[Settings, ...]:
    """The runs of an item at the paper's settings."""
    return tuple(presets.settings(*item, "paper").values())


def distance(item: Item, runs: Iterable[Settings]) -> dict[str, dict[str, list]]:
    """The settings in which runs differ from the paper's: field -> the values 'here' and 'paper'.

    A field of the preset `paper` whose values include all of ours does not count. Fewer seeds than the paper's do not
    count either: they are part of the uncertainty. If no field differs, but runs of the paper were not made, these are
    counted under the name 'runs'.
    """
    here, paper = list(runs), list(_paper(item))
    found = {}
    for name in (each.name for each in fields(Settings) if each.name not in UNCOUNTED):
        for part, ours, theirs in _parts(name, here, paper):
            if ours - theirs:
                found[part] = {"here": _listed(ours), "paper": _listed(theirs)}
    made, printed = ({replace(run, **UNCOUNTED) for run in runs} for runs in (here, paper))
    if here and not found and printed - made:
        found["runs"] = {"here": [len(printed & made)], "paper": [len(printed)]}
    return found


def _parts(name: str, here: list[Settings], paper: list[Settings]):
    """A field with its values on both sides; the options of models and algorithms that both have, one by one."""
    if not name.endswith("_options"):
        used = [[run for run in runs if run.partition in USED_BY.get(name, {run.partition})] for runs in (here, paper)]
        yield name, *({getattr(run, name) for run in runs} for runs in used)
        return
    kind = name.removesuffix("_options")
    defaults = model_defaults if kind == "model" else algorithm_defaults
    both = {getattr(run, kind) for run in here} & {getattr(run, kind) for run in paper}

    def options(runs: list[Settings]) -> dict[str, set]:
        result: dict[str, set] = {}
        for run in (run for run in runs if getattr(run, kind) in both):
            for option, value in (defaults(getattr(run, kind)) | dict(getattr(run, name))).items():
                result.setdefault(f"{getattr(run, kind)}.{option}", set()).add(value)
        return result

    ours, theirs = options(here), options(paper)
    for option in ours:
        yield option, ours[option], theirs[option]


def _listed(values: Iterable[Any]) -> list:
    return sorted(values, key=lambda value: (value is not None, isinstance(value, str), str(value)))


def scope_of(item: Item, verdict: Verdict, runs: Iterable[Settings]) -> str:
    """The scope of a verdict from its comparisons and from the settings of its runs.

    What draws from a distribution that the paper states is counted. What a notebook trains in its own cells is not.
    """
    runs = list(runs)
    if not runs:
        arithmetic = (each.counted or each.each == "draw" for each in verdict.comparisons)
        return "counted" if verdict.comparisons and all(arithmetic) else "stand-in"
    apart = distance(item, runs)
    if not apart:
        return "paper"
    return "stand-in" if {"dataset", "model"} & apart.keys() else "reduced"


def check(result: Mapping[str, Any]) -> None:
    """Raise `InputError` where a result claims a scope or a word that its own numbers do not allow."""
    scope, apart = result["scope"], result["distance"]
    if scope == "paper" and apart:
        raise InputError(f"scope 'paper', but {', '.join(sorted(apart))} are not the paper's")
    if result["word"] in FIRM.values() and scope not in ("counted", "paper"):
        raise InputError(f"{result['word']!r} is a word for scope counted and paper, not {scope!r}")


def word(outcome: str, scope: str, preset: str, readings: Mapping[str, Verdict]) -> str:
    """The word that is said of the paper.

    `reproduced` and `contradicted` need all readings of the paper to come out alike.

    >>> word("agrees", "stand-in", "laptop", {}), word("agrees", "paper", "paper", {})
    ('agrees here', 'reproduced')
    """
    if preset == "quick":
        return "seen"
    firm = scope in ("counted", "paper") and all(each.outcome == outcome for each in readings.values())
    return (FIRM if firm else HERE).get(outcome, outcome)


def judge(
    item: Item,
    preset: str,
    verdict: Verdict,
    histories: Mapping[str, History],
    printed: Iterable[Mapping],
    also: Mapping[str, Verdict],
) -> tuple[Verdict, dict[str, Verdict], str]:
    """The verdict and those on what is also asked, after three checks of the outcome, and the scope.

    1. No comparison may change sides during the rounds that the paper still has. Data that stand for the paper's have
       the rounds of those.
    2. Where two algorithms are compared, rivals come out in the paper's order on these data, see `regime`.
    3. The same rule, applied to the printed table, agrees.

    The checks can only make an outcome undecided.
    """
    runs = [run.settings for run in histories.values() if run.settings]
    scope = scope_of(item, verdict, runs)
    if preset == "quick" or scope == "counted":
        return verdict, dict(also), scope
    longest: dict[str, int] = {}  # rounds of the paper, by data; '': the most
    for run in _paper(item):
        for data in (run.dataset, ""):
            longest[data] = max(longest.get(data, 0), run.num_rounds)
    rows = list(printed)

    @cache
    def rivals(moment: str) -> regime.Found:
        return regime.order(item, preset, histories, rows, moment)

    def checked(each: Comparison) -> Comparison:
        left = longest.get(regime.stands_for(item, each.data), longest.get("", 0)) - each.rounds
        key = regime.Federation(each.data, each.partition, each.clients)
        found = regime.like(key, rivals(each.moment)) if each.rivals else []
        return each.barred(next((order.short for order in found if order.short), "")).after(max(left, 0))

    def after(found: Verdict, check: Callable[[Verdict], Verdict] = lambda found: found) -> Verdict:
        if found.readings:
            return kindest({name: check(after(each)) for name, each in found.readings.items()})
        return check(again(found, map(checked, found.comparisons)))

    def in_print(found: Verdict) -> Verdict:
        doubts = self_check(item, found.comparisons, rows) if found.outcome in FIRM else []
        reason = shortened("; ".join((*doubts[:1], found.reason)))
        return replace(found, outcome="undecided", reason=reason) if doubts else found

    return after(verdict, in_print), {name: after(each) for name, each in also.items()}, scope


def self_check(item: Item, comparisons: Iterable[Comparison], rows: Iterable[Mapping]) -> list[str]:
    """Sentences on the comparisons of two methods that do not hold in print: in this table, or in that of the rivals.

    Where columns of the table are of the data of a comparison, only these are looked at.
    """
    tables = [(item, list(rows)), *((other, presets.published(*other)) for other in regime.tables_of_rivals(item))]
    printed = [(table, {kind: regime.by_method(known, kind) for kind in KINDS.values()}) for table, known in tables]
    found = {}
    for each in comparisons:
        rows_of, gaps = _gaps_in_print(each, printed) if each.pair and each.metric in KINDS else ("", {})
        for column, gap in gaps.items():
            far = gap if each.signed else abs(gap)
            if (far - each.asked) * (1 if each.above else -1) < 0:
                found[rows_of] = f"the printed table itself has {rows_of} at {gap:+.1f} ({plain_name(column)})"
    return list(found.values())


def _gaps_in_print(each: Comparison, printed: Sequence[tuple[Item, Mapping]]) -> tuple[str, dict[str, float]]:
    """The rows of two methods in words, and their differences in the columns of the first table that has these data.

    Of the item's own table, which comes first, all columns count if none is of these data.
    """
    names = [name.rpartition("/")[2] for name in each.pair or ()]
    runs = list(zip(names, each.methods or ("", ""), strict=False))
    for table, by_kind, every in (*((*each, False) for each in printed), (*printed[0], True)):
        rows = by_kind[KINDS[each.metric]]
        keys = [_row(name, method, rows) for name, method in runs]
        both = set.intersection(*(set(rows.get(key, ())) for key in keys))
        columns = sorted(both) if every else regime.columns_on(table, both, each.data, each.partition)
        gaps = {column: rows[keys[0]][column] - rows[keys[1]][column] for column in columns if len(set(keys)) == 2}
        if gaps:
            return " against ".join(map(plain_name, keys)), gaps
    return "", {}


def _row(name: str, method: str, rows: Mapping) -> str:
    """The printed row of a run: that of its name, or of its algorithm where it is named after it; '': none."""
    named_after = bool(method) and name.startswith((method, look(method)["label"]))
    return name if name in rows else method if named_after else ""


def told(verdict: Verdict, preset: str) -> str:
    """The reason; at `quick`, which says nothing of the paper, without the words "as claimed" and "as printed".

    >>> told(Verdict("agrees", "rows 3; 2 of 2 as claimed"), "quick")
    'rows 3; 2 of 2 hold here'
    """
    if preset != "quick":
        return verdict.reason
    return re.sub(r"(\d)( decided)? as [a-z]+", r"\1 hold here", verdict.reason)


def told_of(verdicts: Mapping[str, Verdict], preset: str) -> dict[str, dict[str, str]]:
    """The outcome and the reason of each verdict, for a result's JSON."""
    return {name: {"outcome": each.outcome, "reason": told(each, preset)} for name, each in verdicts.items()}


def recorded(verdict: Verdict) -> dict[str, Any]:
    """The comparisons of a verdict for a result's JSON, by name."""
    adjusted = adjusted_p(verdict.comparisons)
    tests = sum(each.fact is None for each in verdict.comparisons)
    pairs = zip(verdict.comparisons, adjusted, strict=True)
    return {each.name: each.record(p, tests, verdict.level) for each, p in pairs}
