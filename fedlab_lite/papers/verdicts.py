"""The one gate between what a notebook measured and what may be said of it: a verdict, and a sentence made of numbers.

| verdict        | means                                                                                    |
| ---            | ---                                                                                      |
| `exact`        | counted or derived, and as printed                                                       |
| `reproduced`   | measured in training; it could have come out otherwise, and did not                      |
| `contradicted` | decided, the other way; the sentence says by how much, and why where that is known       |
| `inconclusive` | not decided: too early, too close, too few seeds, diverged, or a method learnt nothing   |

A comparison of trained runs decides only where every method is clearly above the constant answer, no curve still rises
by more than the lead, and the lead is beyond noise. Nothing here raises: what cannot be judged is inconclusive.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedlab_lite.engine import History

VERDICTS = ("exact", "reproduced", "contradicted", "inconclusive")

SEEDS = 3  # so many tell by themselves how far they scatter
ERRORS = 2  # standard errors over seeds that a lead must exceed
FEW_SEEDS_ERRORS = 3  # standard errors over clients and test rows, where there are fewer seeds
FEW_SEEDS_LEAD = 0.05  # and a share: other seeds may scatter more than clients and rows do
CLEARLY = 0.02  # a share above the constant answer, beside as many standard errors
SHOWN = 3  # reasons that one sentence names
LOWER = ("loss", "distance", "error", "gap", "residual")  # words in a metric's name: less of it is better


class Verdict(NamedTuple):
    """One of `VERDICTS`, and the sentence that says why."""

    verdict: str
    reason: str

    def _repr_markdown_(self) -> str:
        return f"**{self.verdict}**: {self.reason}"


def derived(facts: Mapping[str, tuple[Any, bool]], cause: str = "", like: str = "printed") -> Verdict:
    """What is counted or derived, name -> (our number, whether it is as printed): `exact` if all are.

    Args:
      cause: why some are not, or none was counted, where that is known; goes into the sentence.
      like: the word for what they should be, where nothing is printed: "expected".

    >>> derived({"parameters": (737214, True)}).reason
    '1 of 1 as printed: parameters 737,214'
    """
    broken = [name for name, (value, _) in facts.items() if not _finite(value)]
    because = f"; {cause}" if cause else ""
    if broken or not facts:
        why = f"not a number: {_some(broken)}" if facts else f"nothing was counted{because}"
        return Verdict("inconclusive", why)
    told = {name: f"{name} {_show(value)}" for name, (value, _) in facts.items()}
    wrong = [told[name] for name, (_, holds) in facts.items() if not holds]
    if wrong:
        return Verdict("contradicted", f"{len(wrong)} of {len(facts)} not as {like}: {_some(wrong)}{because}")
    return Verdict("exact", f"{len(facts)} of {len(facts)} as {like}: {_some(list(told.values()))}")


def observed(
    what: str,
    values: Any,
    threshold: float = 0.0,
    *,
    above: bool = True,
    error: float = math.nan,
    runs: Mapping[str, History] | None = None,
    cause: str = "",
    each: str = "seed",
) -> Verdict:
    """Whether a measured number, a value a seed, lies beyond a threshold: `reproduced`, or not, or not decided.

    Args:
      error: its standard error, where it is known without seeds (of clients and test rows); for fewer than three.
      above: whether it should lie above.
      runs: the trainings that it was taken from; where one of them learnt nothing, the number decides nothing.
      each: what there is a value of, where it is no seed: "draw", "measurement".

    >>> observed("loss at the end", [0.2, 0.3, 0.25], 1.0, above=False).verdict
    'reproduced'
    """
    if wrong := trained(runs or {}):
        return Verdict("inconclusive", _some(wrong))
    return _decide(what, np.asarray(values, float).ravel(), threshold, above, error, 0.0, False, cause, each)


def trained(histories: Mapping[str, History]) -> list[str]:
    """What keeps these runs from being compared: a sentence each, none where all have learnt something."""
    found = []
    for name, run in histories.items():
        if run.num_rounds < 1 or not run.seeds:
            found.append(f"{name} was not trained ({run.num_rounds} rounds, {len(run.seeds)} seeds)")
        elif any(run.diverged) or not _finite(run.metrics[run.headline]):
            found.append(f"{name} diverged")
        elif _is_share(run.headline) and not math.isfinite(run.constant):
            found.append(f"{name} has no constant answer to be held against")
        else:
            found += _learnt(name, run)
    return found


def _learnt(name: str, run: History) -> list[str]:
    """Whether it is clearly better than one answer for everything; where that is not known, than before training."""
    headline, values = run.headline, run.final(run.headline)
    share, sign = _is_share(headline), 1 if better_higher(headline) else -1
    spread = _seeds_error(values) if len(values) >= SEEDS else _error(run, headline, values)
    known = math.isfinite(run.constant)
    least = run.constant if known else float(run.metrics[headline][:, 0].mean())
    need = max(CLEARLY * (1 if share else abs(least)), FEW_SEEDS_ERRORS * (spread if math.isfinite(spread) else 0))
    if sign * (values.mean() - least) > need:
        return []
    says = f"{100 * values.mean():.1f} % against {100 * least:.1f} %" if share else f"{values.mean():.4g}, {least:.4g}"
    beyond = f"{'above' if sign > 0 else 'below'} {'the constant answer' if known else 'where it started'}"
    return [f"{name} is not clearly {beyond} ({says})"]


def compare(
    histories: Mapping[str, History],
    left: str,
    right: str | Iterable[str],
    metric: str | None = None,
    *,
    by: float = 0.0,
    higher: bool | None = None,
    last: int = 10,
    cause: str = "",
) -> Verdict:
    """Whether run `left` is ahead of every run of `right` by more than `by`, over the last rounds and common seeds.

    Args:
      metric: None: the headline (accuracy, a share; a regression's is its distance).
      by: in the metric's unit; below 0: at most so far behind, so that a tie within a tolerance counts like a lead.
      higher: whether more is better; None: as the metric's name says, see `better_higher`.
      last: rounds whose mean counts, see `History.final`.
      cause: why it is so, where that is known, for a sentence that contradicts.
    """
    others = [right] if isinstance(right, str) else list(right)
    missing = [name for name in (left, *others) if name not in histories]
    if missing or not others:
        return Verdict("inconclusive", f"{_some(missing) or 'nothing to compare with'} did not run")
    if wrong := trained({name: histories[name] for name in (left, *others)}):
        return Verdict("inconclusive", _some(wrong))
    return together(*(_pair(histories, left, other, metric, by, higher, last, cause) for other in others))


def _pair(histories, left, right, metric, by, higher, last, cause) -> Verdict:
    runs = histories[left], histories[right]
    metric = metric or runs[0].headline
    if absent := [name for name, run in zip((left, right), runs, strict=True) if metric not in run.metrics]:
        return Verdict("inconclusive", f"{_some(absent)} has no {metric}")
    common = [seed for seed in runs[0].seeds if seed in runs[1].seeds]
    if not common:
        return Verdict("inconclusive", f"{left} and {right} have no seed in common")
    runs = tuple(_with_seeds(run, common) for run in runs)
    higher = better_higher(metric) if higher is None else higher
    sign = 1 if higher else -1
    values = [run.final(metric, last) for run in runs]
    errors = [_error(run, metric, each) for run, each in zip(runs, values, strict=True)]
    curves = [run.client_accuracy.mean(0) for run in runs]
    if (
        metric == runs[0].headline and _is_share(metric) and curves[0].shape == curves[1].shape
    ):  # the same clients: compared one by one
        errors = [_rows_error(run, each) for run, each in zip(runs, values, strict=True)]
        errors.append(_seeds_error(curves[0] - curves[1]))
    rise = max(sign * _rise(run, metric) for run in runs)
    words = f"{left} against {right}" + ("" if metric == runs[0].headline else f" in {metric}")
    # as the metric is: of two errors, the smaller one less the larger one is below 0
    return _decide(words, values[0] - values[1], sign * by, higher, math.hypot(*errors), rise, _is_share(metric), cause)


def _decide(what, values, threshold, above, error, rise, share, cause, each="seed") -> Verdict:
    """Whether `values`, one a seed, lie beyond a threshold: the rules for all."""

    def show(number: float) -> str:
        return f"{100 * number:+.1f} points" if share else f"{number:.4g}"

    if not len(values) or not _finite(values):
        return Verdict("inconclusive", f"{what}: not a number" if len(values) else f"{what}: no {each}s")
    margin = (values.mean() - threshold) * (1 if above else -1)
    enough = len(values) >= SEEDS
    error = _seeds_error(values) if enough else error
    need = ERRORS * error if enough else max(FEW_SEEDS_ERRORS * error, FEW_SEEDS_LEAD if share else 0.0)
    seeds = f"{len(values)} {each}{'s' * (len(values) > 1)}"
    noise = f"s.e. {show(error).lstrip('+')}, {seeds}" if math.isfinite(error) else seeds
    limit = f", asked: {'more' if above else 'less'} than {show(threshold)}" if threshold else ""
    said = f"{what}: {show(values.mean())} ({noise}{limit})"
    if not abs(margin) > need:  # also where the need is not known
        why = "within noise" if math.isfinite(error) else f"needs {SEEDS} {each}s"
        return Verdict("inconclusive", f"{said} is {why}" if math.isfinite(error) else f"{said} {why}")
    if rise > abs(margin):
        moves = f"rises by {show(rise)}" if above else f"falls by {show(rise).lstrip('+')}"
        return Verdict("inconclusive", f"{said}, while a curve still {moves} in its last quarter")
    if margin > 0:
        return Verdict("reproduced", said)
    return Verdict("contradicted", f"{said}; {cause}" if cause else said)


def together(*verdicts: Verdict) -> Verdict:
    """All of them: contradicted if one is, else inconclusive if one is, else reproduced unless all are exact."""
    kinds = {each.verdict for each in verdicts}
    order = ("contradicted", "inconclusive", "reproduced", "exact")
    worst = next((kind for kind in order if kind in kinds), "inconclusive")
    reasons = dict.fromkeys(each.reason for each in verdicts if each.verdict == worst)
    return Verdict(worst, _some(list(reasons)) or "nothing was compared")


def given(premise: Verdict, verdict: Verdict) -> Verdict:
    """A verdict that means something only where its premise was found to be so; elsewhere inconclusive.

    >>> given(observed("the gain of depth", [-1.0, -1.2, -1.1]), observed("lead", [3.0, 3.1, 3.2])).reason
    'says nothing without its premise: the gain of depth: -1.1 (s.e. 0.05774, 3 seeds)'
    """
    if premise.verdict in ("exact", "reproduced"):
        return verdict
    return Verdict("inconclusive", f"says nothing without its premise: {premise.reason}")


def change(run: History, metric: str | None = None, share: float = 0.2) -> np.ndarray:
    """How far a curve still moves: its mean over the last fifth of the rounds less that over the fifth before, `[S]`.

    Args:
      metric: None: the headline.
      share: of the rounds, in place of a fifth.

    Returns: nan for all seeds where one of the two has no evaluation.
    """
    curve, at = run.metrics[metric or run.headline].astype(float), run.rounds / max(run.num_rounds, 1)
    late, before = at > 1 - share, (at > 1 - 2 * share) & (at <= 1 - share)
    if not (run.num_rounds and late.any() and before.any()):
        return np.full(len(curve), math.nan)
    return curve[:, late].mean(1) - curve[:, before].mean(1)


def settled(
    what: str, moved: np.ndarray, within: float, *, higher: bool = True, runs: Mapping[str, History] | None = None
) -> Verdict:
    """Whether a curve has come to rest; one that still gets better has had too few rounds, and decides nothing.

    Args:
      moved: how far at the end, a value a seed, see `change`; less than `within` either way is rest.
      higher: whether more is better.
      runs: as for `observed`.

    >>> settled("accuracy", np.array([0.05, 0.06, 0.05]), 0.02).verdict
    'inconclusive'
    """
    found = observed(what, np.abs(moved), within, above=False, runs=runs)
    if found.verdict == "contradicted" and np.mean(moved) * (1 if higher else -1) > 0:
        return Verdict("inconclusive", f"{found.reason}: still getting better")
    return found


# --- errors and curves --------------------------------------------------------------------------------------------


def _with_seeds(run: History, seeds: list[int]) -> History:
    """What a run measured with these of its seeds."""
    rows = [run.seeds.index(seed) for seed in seeds]
    metrics = {name: values[rows] for name, values in run.metrics.items()}
    diverged = tuple(run.diverged[row] for row in rows)
    return replace(run, seeds=tuple(seeds), metrics=metrics, client_curves=run.client_curves[rows], diverged=diverged)


def better_higher(metric: str) -> bool:
    """Whether more of a metric is better; not so of losses, distances, errors and gaps, by their names.

    >>> [better_higher(name) for name in ("accuracy_unseen", "accuracy_gap", "loss_training", "distance", "f1")]
    [True, False, False, False, True]
    """
    return not any(word in metric for word in LOWER)


def _is_share(metric: str) -> bool:
    return metric.startswith("accuracy")


def _finite(values: Any) -> bool:
    if isinstance(values, str | bool):
        return True
    try:
        return bool(np.isfinite(np.asarray(values, float)).all())
    except (TypeError, ValueError):
        return False


def _seeds_error(values: np.ndarray) -> float:
    """Standard error of a mean; of a single value it is not known."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _rows_error(run: History, values: np.ndarray) -> float:
    """Of a share of the test labels: drawing other ones."""
    share = float(np.clip(values.mean(), 0, 1))
    return math.sqrt(share * (1 - share) / max(run.test_labels.get("all", 0), 1))


def _error(run: History, metric: str, values: np.ndarray) -> float:
    """Of one run by itself: other clients and other test labels; not known but for accuracies."""
    if not _is_share(metric):
        return math.nan
    clients = run.client_accuracy.mean(0)
    if metric.endswith("_gap"):  # two clients' accuracies
        share = float(np.clip(clients.mean(), 0, 1))
        return math.sqrt(2 * share * (1 - share) / max(run.test_labels.get("a client", 0), 1))
    return math.hypot(_seeds_error(clients), _rows_error(run, values))


def _rise(run: History, metric: str) -> float:
    """How far a curve went up in its last quarter: its slope there, the mean over seeds, times the quarter's rounds."""
    rounds, curve = run.rounds, run.metrics[metric].mean(0)
    start = min(np.searchsorted(rounds, 0.75 * run.num_rounds), len(rounds) - 2)
    if not _finite(curve[start:]):
        return math.inf
    return float(np.polyfit(rounds[start:], curve[start:], 1)[0] * run.num_rounds / 4)


# --- words --------------------------------------------------------------------------------------------------------


def _show(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _some(words: list[str]) -> str:
    """The first of them, each said once, also where one of them is already a sentence of several."""
    parts = [part for word in words[:SHOWN] for part in word.split("; ")]
    once = [part for i, part in enumerate(parts) if part not in parts[:i] or part.startswith("and ")]
    more = f"; and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return "; ".join(once) + more
