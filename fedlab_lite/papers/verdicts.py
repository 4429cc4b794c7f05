"""Verdicts on claims: one fixed set of rules turns measured numbers into a verdict and a sentence.

| verdict        | means                                                                                    |
| ---            | ---                                                                                      |
| `exact`        | counted or derived, and equal to the printed value                                       |
| `reproduced`   | measured in training, and as claimed; it could have come out otherwise                   |
| `contradicted` | decided against the claim; the sentence says by how much, and why if that is known       |
| `inconclusive` | not decided: too early, too close, too few seeds, diverged, or a method learnt nothing   |

A comparison of trained runs is decided only under three conditions. Every method is clearly above the majority
baseline. No curve still rises by more than the lead. The lead is larger than the noise. No function here raises an
error: a claim that cannot be judged is inconclusive.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedlab_lite.engine import History
from fedlab_lite.papers import noise

VERDICTS = ("exact", "reproduced", "contradicted", "inconclusive")

SEEDS = 3  # from this number on, the spread over seeds gives the standard error
ERRORS = 2  # standard errors over seeds that a lead must exceed
FEW_SEEDS_ERRORS = 3  # standard errors over clients and test rows, if there are fewer seeds
FEW_SEEDS_LEAD = 0.05  # and this share: seeds may vary more than clients and rows do
CLEARLY = 0.02  # share above the majority baseline; a number of standard errors is also required
SHOWN = 3  # the most reasons in one sentence


class Verdict(NamedTuple):
    """One of `VERDICTS`, with a sentence that gives the reason."""

    verdict: str
    reason: str

    def _repr_markdown_(self) -> str:
        return f"**{self.verdict}**: {self.reason}"


def derived(facts: Mapping[str, tuple[Any, bool]], cause: str = "", like: str = "printed") -> Verdict:
    """The verdict on counted or derived numbers: `exact` if all are as printed.

    Args:
      facts: name -> (our number, whether it is as printed).
      cause: why some differ, or why there is none, if that is known; it is added to the sentence.
      like: the word to use in place of "printed" where the paper prints nothing, such as "expected".

    >>> derived({"parameters": (737214, True)}).reason
    '1 of 1 as printed: parameters 737,214'
    """
    broken = [name for name, (value, _) in facts.items() if not noise.finite(value)]
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
    """The verdict on a measured number, one value per seed, that should lie beyond a threshold.

    Args:
      error: its standard error over clients and test rows; used with fewer than three seeds.
      above: whether the number should lie above the threshold.
      runs: the training runs behind the number; if one of them learnt nothing, the verdict is inconclusive.
      each: what each value belongs to, if not to a seed: "draw", "measurement".

    >>> observed("loss at the end", [0.2, 0.3, 0.25], 1.0, above=False).verdict
    'reproduced'
    """
    if wrong := trained(runs or {}):
        return Verdict("inconclusive", _some(wrong))
    return _decide(what, np.asarray(values, float).ravel(), threshold, above, error, 0.0, False, cause, each)


def trained(histories: Mapping[str, History]) -> list[str]:
    """Reasons why these runs cannot be compared, one sentence each; empty if every run learnt something."""
    found = []
    for name, run in histories.items():
        if run.num_rounds < 1 or not run.seeds:
            found.append(f"{name} was not trained ({run.num_rounds} rounds, {len(run.seeds)} seeds)")
        elif any(run.diverged) or not noise.finite(run.metrics[run.headline]):
            found.append(f"{name} diverged")
        elif noise.is_share(run.headline) and not math.isfinite(run.constant):
            found.append(f"{name} has no majority baseline to be held against")
        else:
            found += _learnt(name, run)
    return found


def _learnt(name: str, run: History) -> list[str]:
    """A reason if a run is not clearly above the majority baseline (if unknown: above its start), else none."""
    headline, values = run.headline, run.final(run.headline)
    share, sign = noise.is_share(headline), 1 if noise.better_higher(headline) else -1
    spread = noise.seeds_error(values) if len(values) >= SEEDS else noise.error(run, headline, values)
    known = math.isfinite(run.constant)
    least = run.constant if known else float(run.metrics[headline][:, 0].mean())
    need = max(CLEARLY * (1 if share else abs(least)), FEW_SEEDS_ERRORS * (spread if math.isfinite(spread) else 0))
    if sign * (values.mean() - least) > need:
        return []
    says = f"{100 * values.mean():.1f} % against {100 * least:.1f} %" if share else f"{values.mean():.4g}, {least:.4g}"
    beyond = f"{'above' if sign > 0 else 'below'} {'the majority baseline' if known else 'where it started'}"
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
    """The verdict on whether `left` leads every run of `right` by more than `by`, over last rounds and common seeds.

    Args:
      metric: None: the headline metric (accuracy as a share; for a regression the distance).
      by: in the metric's unit. A negative value allows `left` to be behind by that much, so a tie counts as a lead.
      higher: whether higher is better; None: decided by the metric's name, see `noise.better_higher`.
      last: number of last rounds to average over, see `History.final`.
      cause: the reason for a contradiction, if it is known; it is added to the sentence.
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
    runs = tuple(noise.with_seeds(run, common) for run in runs)
    higher = noise.better_higher(metric) if higher is None else higher
    sign = 1 if higher else -1
    values = [run.final(metric, last) for run in runs]
    errors = [noise.error(run, metric, each) for run, each in zip(runs, values, strict=True)]
    curves, share = [run.client_accuracy.mean(0) for run in runs], noise.is_share(metric)
    if metric == runs[0].headline and share and curves[0].shape == curves[1].shape:  # the same clients, in pairs
        errors = [noise.rows_error(run, each) for run, each in zip(runs, values, strict=True)]
        errors.append(noise.seeds_error(curves[0] - curves[1]))
    rise = max(sign * noise.rise(run, metric) for run in runs)
    words = f"{left} against {right}" + ("" if metric == runs[0].headline else f" in {metric}")
    # The difference keeps the metric's sign: where lower is better, a lead is negative.
    return _decide(words, values[0] - values[1], sign * by, higher, math.hypot(*errors), rise, share, cause)


def _decide(what, values, threshold, above, error, rise, share, cause, each="seed") -> Verdict:
    """Apply the common rules: whether `values`, one per seed, lie beyond a threshold."""

    def show(number: float) -> str:
        return f"{100 * number:+.1f} points" if share else f"{number:.4g}"

    if not len(values) or not noise.finite(values):
        return Verdict("inconclusive", f"{what}: not a number" if len(values) else f"{what}: no {each}s")
    margin = (values.mean() - threshold) * (1 if above else -1)
    enough = len(values) >= SEEDS
    error = noise.seeds_error(values) if enough else error
    need = ERRORS * error if enough else max(FEW_SEEDS_ERRORS * error, FEW_SEEDS_LEAD if share else 0.0)
    seeds = f"{len(values)} {each}{'s' * (len(values) > 1)}"
    spread = f"s.e. {show(error).lstrip('+')}, {seeds}" if math.isfinite(error) else seeds
    limit = f", asked: {'more' if above else 'less'} than {show(threshold)}" if threshold else ""
    said = f"{what}: {show(values.mean())} ({spread}{limit})"
    if not abs(margin) > need:  # also if `need` is not a number
        why = "within noise" if math.isfinite(error) else f"needs {SEEDS} {each}s"
        return Verdict("inconclusive", f"{said} is {why}" if math.isfinite(error) else f"{said} {why}")
    if rise > abs(margin):
        moves = f"rises by {show(rise)}" if above else f"falls by {show(rise).lstrip('+')}"
        return Verdict("inconclusive", f"{said}, while a curve still {moves} in its last quarter")
    if margin > 0:
        return Verdict("reproduced", said)
    return Verdict("contradicted", f"{said}; {cause}" if cause else said)


def together(*verdicts: Verdict) -> Verdict:
    """Combine verdicts: contradicted if one is, else inconclusive if one is, else reproduced unless all are exact."""
    kinds = {each.verdict for each in verdicts}
    order = ("contradicted", "inconclusive", "reproduced", "exact")
    worst = next((kind for kind in order if kind in kinds), "inconclusive")
    reasons = dict.fromkeys(each.reason for each in verdicts if each.verdict == worst)
    return Verdict(worst, _some(list(reasons)) or "nothing was compared")


def given(premise: Verdict, verdict: Verdict) -> Verdict:
    """Return the verdict if its premise holds; otherwise inconclusive.

    >>> given(observed("the gain of depth", [-1.0, -1.2, -1.1]), observed("lead", [3.0, 3.1, 3.2])).reason
    'says nothing without its premise: the gain of depth: -1.1 (s.e. 0.05774, 3 seeds)'
    """
    if premise.verdict in ("exact", "reproduced"):
        return verdict
    return Verdict("inconclusive", f"says nothing without its premise: {premise.reason}")


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
    what: str, moved: np.ndarray, within: float, *, higher: bool = True, runs: Mapping[str, History] | None = None
) -> Verdict:
    """The verdict on whether a curve has levelled off; inconclusive if it still improves.

    Args:
      moved: the change at the end, one value per seed, see `change`; the curve is level if it is less than `within`.
      higher: whether higher is better.
      runs: as for `observed`.

    >>> settled("accuracy", np.array([0.05, 0.06, 0.05]), 0.02).verdict
    'inconclusive'
    """
    found = observed(what, np.abs(moved), within, above=False, runs=runs)
    if found.verdict == "contradicted" and np.mean(moved) * (1 if higher else -1) > 0:
        return Verdict("inconclusive", f"{found.reason}: still getting better")
    return found


# --- words --------------------------------------------------------------------------------------------------------


def _show(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _some(words: list[str]) -> str:
    """Join the first reasons and drop repeated ones, also within a reason that has several parts."""
    parts = [part for word in words[:SHOWN] for part in word.split("; ")]
    once = [part for i, part in enumerate(parts) if part not in parts[:i] or part.startswith("and ")]
    more = f"; and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return "; ".join(once) + more
