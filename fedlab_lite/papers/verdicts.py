"""Verdicts on claims: one fixed set of rules turns measured numbers into an outcome and a sentence.

| outcome     | means                                                                                         |
| ---         | ---                                                                                           |
| `agrees`    | every comparison is as claimed, beyond its error                                              |
| `differs`   | one comparison is not as claimed, beyond its error                                            |
| `undecided` | neither: not beyond doubt, too few seeds or partitions, not trained, or at unlike moments     |
| `misprint`  | counted: printed numbers contradict each other or what they describe                          |

Comparisons are paired by seed. Their p values are two-sided and corrected by Holm's method over all comparisons of a
claim. What is as claimed is also corrected for the number of readings, because the kindest reading is told. So methods
that are equal get either word in at most 5 % of claims. `papers.scope` says how close to the paper the runs are, and so
which word may be used of the paper. No function here raises an error because of what runs gave.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedlab_lite.engine import History
from fedlab_lite.papers import errors, regime, statistics
from fedlab_lite.papers.learnt import trained
from fedlab_lite.papers.names import MOMENTS, plain_key, plain_name, versus
from fedlab_lite.papers.outcome import Verdict, decide, given, kindest, shortened, together
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.runs import metric_at, moment_of
from fedlab_lite.util import InputError

WHOLE = ("rounds", "epochs")  # units of numbers that are counted

__all__ = ("change", "compare", "derived", "given", "kindest", "observed", "settled", "table", "together", "trained")


def derived(
    facts: Mapping[str, tuple],
    cause: str = "",
    like: str = "printed",
    *,
    misprint: bool = False,
    of_training: bool = False,
) -> Verdict:
    """The verdict on counted or derived numbers.

    Args:
      facts: name -> (our number, whether it is as printed).
      cause: why some differ, if that is known; it is added to the sentence.
      like: the word to use in place of "printed" where the paper prints nothing, such as "expected".
      misprint: whether what differs contradicts the paper's own text, so that no number of ours is needed.
      of_training: whether the numbers come from training in the notebook's own cells, so that they are not counted.

    >>> derived({"rows": (3, True), "total": (2.5, False)}, "the rows add up to 3", misprint=True).reason
    'total 2.5; 1 of 2 as printed; the rows add up to 3'
    """
    told = []
    for name, (value, holds) in facts.items():
        wrong = "" if statistics.finite(value) else f"{name} is not a number"
        about = {"fact": bool(holds), "obstacle": wrong, "each": "run" if of_training else "seed"}
        told.append(Comparison(f"{plain_name(name)} {_show(value)}", math.nan, **about))
    if not told:
        return Verdict("undecided", shortened(f"nothing was counted{f'; {cause}' if cause else ''}"))
    found = decide(told, like=like, cause=cause)
    return replace(found, outcome="misprint") if misprint and found.outcome == "differs" else found


def observed(
    what: str,
    values: Any,
    threshold: float = 0.0,
    *,
    above: bool = True,
    error: float = math.nan,
    freedom: float = math.nan,
    runs: Mapping[str, History] | None = None,
    cause: str = "",
    along: tuple[np.ndarray, np.ndarray] | None = None,
    each: str = "seed",
    unit: str = "",
) -> Verdict:
    """The verdict on a measured number, one value per seed, that should lie beyond a threshold.

    Args:
      values: numbers; or booleans, whose share is tested by the binomial distribution.
      above: whether the number should lie above the threshold.
      error: a further standard error, for example over clients and test rows; with it one value is enough, if that is
        not of a seed.
      freedom: its degrees of freedom, one less than the number of clients; math.inf: it is known exactly, and is not
        over clients.
      runs: the training runs behind the number; if one of them learnt nothing, the verdict is undecided.
      along: the number over training, as rounds `[E]` and values `[S, E]`: how it moves at the end.
      each: what each value belongs to, if not to a seed: "draw", "measurement".
      unit: of the values, such as "points". Whole rounds or epochs, and differences of two, have an error of rounding.

    Raises: `InputError` for booleans with a threshold that no share can lie on both sides of, and for an error without
      its degrees of freedom.

    >>> observed("loss at the end", [0.2, 0.3, 0.25], 1.0, above=False).outcome
    'agrees'
    >>> observed("draws below", [False, False, False], 0.5).reason
    'draws below: 0 of 3 seeds (95 % interval: 0 to 71 %, too few to decide); 0 of 1 decided'
    """
    values, name = np.asarray(values), plain_name(what)
    if math.isfinite(error) and math.isnan(freedom):
        raise InputError(f"{what}: an error needs `freedom`, its degrees of freedom; over n clients n - 1")
    about = {"asked": float(threshold), "above": above, "n": values.size, "each": each, "unit": unit}
    about["obstacle"] = "; ".join(trained(runs or {})[:1])
    about |= regime.about_runs(list((runs or {}).values()))
    about["one_partition"] = about["one_partition"] and each == "seed"
    if values.dtype == bool and values.size:
        if not 0 < threshold < 1:
            raise InputError(f"{what}: a share of yes and no is tested against 0 < threshold < 1, not {threshold:g}")
        hits = int(values.sum())
        chance, (low, high) = errors.share_chance(hits, values.size, float(threshold))
        least, _ = errors.share_chance(values.size if above else 0, values.size, float(threshold))  # if all hit
        few = ", too few to decide" if least > errors.LEVEL else ""
        one = " of one partition" if about["one_partition"] else ""
        said = (
            f"{name}: {hits} of {values.size} {each}s{one} (95 % interval: {100 * low:.0f} to {100 * high:.0f} %{few})"
        )
        return decide([Comparison(name, hits / values.size, chance=chance, said=said, **about)], cause=cause)
    values = values.astype(float).ravel()
    if lost := statistics.lacking(values, each):
        about["obstacle"] = f"{name}: {lost}"
        return decide([Comparison(name, math.nan, **about)])
    if along is not None and len(along[0]):
        about |= statistics.movement(statistics.quarters(*along, int(along[0][-1]))) | {"rounds": int(along[0][-1])}
    found = _with_error(Comparison(name, float(values.mean()), **about), values, (error, freedom))
    return decide([found], cause=cause)


def _with_error(found: Comparison, values: np.ndarray, sampling: errors.Part) -> Comparison:
    """The comparison with its error over the values and its sampling error; one value needs it, and is of no seed."""
    known = math.isfinite(sampling[0]) and sampling[1] > 0
    if len(values) > 1:
        whole = found.unit in WHOLE and np.array_equal(values, np.round(values))
        least = 1 / math.sqrt(6 * len(values)) if whole else 0.0  # of rounding, of a difference of two
        seeds = math.hypot(errors.mean_error(values), least), len(values) - 1.0
        one = found.one_partition and not (known and sampling[0] > 0 and math.isfinite(sampling[1]))
        return replace(found, parts=(seeds, sampling) if known else (seeds,), one_partition=one)
    if known and sampling[0] > 0 and found.each != "seed":
        return replace(found, parts=(sampling,), one_partition=False)
    few = f"{replace(found, n=0).words()}, of one {found.each}, so its spread is unknown"
    return replace(found, obstacle=found.obstacle or few)


def compare(
    histories: Mapping[str, History],
    left: str,
    right: str | Iterable[str],
    metric: str | None = None,
    *,
    by: float = 0.0,
    within: float | None = None,
    higher: bool | None = None,
    last: int = 10,
    moment: str | None = None,
    unlearnt: str | Iterable[str] = (),
    cause: str = "",
) -> Verdict:
    """The verdict on whether `left` leads every run of `right` by more than `by`, over last rounds and common seeds.

    Args:
      metric: None: the headline metric of the runs' task (for classification the accuracy, a share).
      by: in the metric's unit. A negative value allows `left` to be behind by that much, so a tie counts as a lead.
      within: instead of a lead: how far apart they may be, in either direction; in the metric's unit.
      higher: whether higher is better; None: decided by the metric's name, see `statistics.better_higher`.
      last: number of last rounds to average over, see `History.final`.
      moment: 'mixed' or 'trained', when methods are judged; None: as each reports it, never at unlike moments.
      unlearnt: names of runs that need not have learnt anything, because the claim says that they fail.
      cause: the reason for a difference, if it is known; it is added to the sentence.
    """
    others, unlearnt = ([each] if isinstance(each, str) else list(each) for each in (right, unlearnt))
    missing = [plain_key(name) for name in (left, *others) if name not in histories]
    if missing or not others:
        return Verdict("undecided", f"{', '.join(missing) or 'nothing to compare with'} did not run")
    pairs = [_pair(histories, (left, other), metric, by, higher, last, moment, unlearnt) for other in others]
    return decide(pairs if within is None else [each.apart(within) for each in pairs], cause=cause)


def _pair(histories, names, metric, by, higher, last, moment, unlearnt) -> Comparison:
    runs = [histories[name] for name in names]
    asked_metric = metric or runs[0].headline
    metrics, at, obstacle = _at_one_moment(names, runs, asked_metric, moment)
    higher = statistics.better_higher(asked_metric) if higher is None else higher
    share, sign = errors.is_share(asked_metric), 1 if higher else -1
    scale = 100 if share else 1
    said = " in " + plain_name(asked_metric) if metric and metric != runs[0].headline else ""
    name = f"{versus(*names)}{said}" + (f", {MOMENTS[moment]}" if moment in MOMENTS else "")
    # The difference keeps the metric's sign: where lower is better, a lead is negative.
    about = {"asked": sign * by * scale, "above": higher, "unit": "points" if share else ""}
    about |= {"pair": tuple(names), "metric": asked_metric, "moment": at} | regime.about_runs(runs)
    common = [seed for seed in runs[0].seeds if seed in runs[1].seeds]
    judged = [dict(zip(run.seeds, run.has(each), strict=True)) for run, each in zip(runs, metrics, strict=True)]
    common = [seed for seed in common if all(has[seed] for has in judged)] or common
    first, second = (trained({label: run}, unlearnt) for label, run in zip(names, runs, strict=True))
    about["learnt"], obstacles = not first, [*first, *second, obstacle]
    obstacles += [f"{plain_key(names[0])} and {plain_key(names[1])} have no seed in common"] * (not common)
    if reason := next(filter(None, obstacles), ""):
        return Comparison(name, math.nan, obstacle=reason, **about)
    runs = [run.with_seeds(common) for run in runs]
    left, right = (run.final(each, last) for run, each in zip(runs, metrics, strict=True))
    values = scale * (left - right)
    if lost := statistics.lacking(values):
        return Comparison(name, math.nan, obstacle=f"{name}: {lost}", **about)
    measured = [(run.rounds, run.metrics[each], run.num_rounds) for run, each in zip(runs, metrics, strict=True)]
    ours, theirs = (statistics.quarters(*each) for each in measured)
    about |= statistics.movement(scale * (ours - theirs)) | {"n": len(common)}
    error, freedom = errors.sampling_error(runs, asked_metric)
    return _with_error(Comparison(name, float(values.mean()), **about), values, (scale * error, freedom))


def _at_one_moment(names, runs, metric, moment) -> tuple[list[str], str, str]:
    """The metric of each run at this moment, the moment ('': neither run mixes), and the reasons why runs have none."""
    moments = [moment_of(run) for run in runs]  # '': no mixing, so there is one moment only
    if moment is None and "" not in moments and moments[0] != moments[1]:
        said = (f"{plain_key(name)} {MOMENTS[each]}" for name, each in zip(names, moments, strict=True))
        return [metric, metric], "", f"judged at unlike moments: {', '.join(said)}"
    at = moment or moments[0] or moments[1]
    found = [metric_at(run, metric, at) for run in runs]
    absent = [
        f"{plain_name(each)} of {plain_key(name)} was not measured"
        for name, run, each in zip(names, runs, found, strict=True)
        if each not in run.metrics
    ]
    return found, at, "; ".join(absent)


def change(run: History, metric: str | None = None, share: float = 0.2) -> np.ndarray:
    """The change of a curve near its end, per seed `[S]`: mean of the last fifth minus mean of the fifth before.

    Args:
      metric: None: the headline metric.
      share: share of the rounds to use in place of a fifth.

    Returns: nan for all seeds if one of the two parts has no evaluation.
    """
    curve, at = run.metrics[metric or run.headline].astype(float), run.rounds / max(run.num_rounds, 1)
    late, before = at > 1 - share, (at > 1 - 2 * share) & (at <= 1 - share)
    if not (run.num_rounds and late.any() and before.any()):
        return np.full(len(curve), math.nan)
    return curve[:, late].mean(1) - curve[:, before].mean(1)


def settled(
    what: str,
    moved: np.ndarray,
    within: float,
    *,
    higher: bool = True,
    runs: Mapping[str, History] | None = None,
    along: tuple[np.ndarray, np.ndarray] | None = None,
) -> Verdict:
    """The verdict on whether a curve has levelled off; undecided if it still improves.

    Args:
      moved: the change at the end, one value per seed, see `change`; the curve is level if it is less than `within`.
      higher: whether higher is better.
      runs: as for `observed`.
      along: the curve, as rounds `[E]` and values `[S, E]` in the unit of `moved`. It is not level if in the paper's
        further rounds it may change by as much.

    >>> settled("accuracy", np.array([0.05, 0.06, 0.05]), 0.02).outcome
    'undecided'
    """
    falls = along is not None and np.mean(moved) < 0
    if along is not None and falls:  # turned over, so that what it moves adds to the change
        along = along[0], -along[1]
    found = observed(what, np.abs(moved), within, above=False, runs=runs, along=along)
    if falls and found.comparisons:
        found = decide([replace(each, falls=True) for each in found.comparisons])
    if found.outcome == "differs" and np.mean(moved) * (1 if higher else -1) > 0:
        return Verdict("undecided", shortened(f"{found.reason}: still getting better"))
    return found


def table(verdicts: Mapping[str, Verdict] | Iterable[Verdict]):
    """Outcomes and reasons as a table for a notebook, one row per verdict."""
    import pandas as pd

    named = dict(verdicts) if isinstance(verdicts, Mapping) else dict(enumerate(verdicts))
    rows = [{"outcome": each.outcome, "reason": each.reason} for each in named.values()]
    shown = pd.DataFrame(rows, index=list(named)).style.format(escape="html").format_index(escape="html")
    return shown if isinstance(verdicts, Mapping) else shown.hide(axis="index")


# --- words --------------------------------------------------------------------------------------------------------


def _show(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
