"""The arithmetic of verdicts: one comparison with its error, p values, Holm's correction, and visible differences.

A difference has two independent errors: over seeds, and over clients and test rows, see `papers.errors`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedlab_lite.papers import errors
from fedlab_lite.papers.errors import LEVEL

LOWER = ("loss", "distance", "error", "gap", "residual")  # a metric whose name has one of these words: lower is better
POWER = 0.8  # with which the smallest visible difference would be seen


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: a difference, what the claim asks of it, and its uncertainty.

    Differences of accuracies are in points (percent), others in the metric's unit. `fact` is set for what is counted
    or derived; then no statistics are needed.

    Example:
      >>> found = Comparison("A against B", 2.0, parts=((0.5, 2),), n=3, unit="points")
      >>> round(found.p, 3), found.holds, found.words()
      (0.057, True, 'A against B: +2.0 ± 0.5 points (3 seeds)')
    """

    name: str
    difference: float
    asked: float = 0.0  # the claim holds above it, or below it
    above: bool = True
    parts: tuple[errors.Part, ...] = ()  # of its error, each with its degrees of freedom; none: the error is unknown
    n: int = 0  # seeds, draws, ...
    each: str = "seed"  # what a value belongs to
    one_partition: bool = False  # whether its error leaves out the draw of clients and of test rows; it decides nothing
    unit: str = ""
    quarters: tuple[float, float] = (0.0, 0.0)  # change of the difference in the third and the last quarter of training
    falls: bool = False  # whether these are changes of a curve that falls, with the other sign
    slows: bool = True  # whether the last quarter's change is smaller than the one before by more than its error
    trend: bool = True  # whether the last quarter's change exceeds its error; else it is noise, and ends with a quarter
    rounds: int = 0  # that were trained
    of_rounds: int = 0  # the paper's, if it is not known how the difference moves until then
    obstacle: str = ""  # why it decides nothing, whatever its number
    fact: bool | None = None
    chance: float | None = None  # p value of a share of yes and no; None: from the error
    said: str = ""  # the clause, where it is not "name: difference ± error"
    pair: tuple[str, str] | None = None  # names of the runs, of a comparison of two
    methods: tuple[str, ...] = ()  # their algorithms
    data: str = ""  # the data set
    partition: str = ""  # of the data, in words
    clients: int = 0  # among which they are divided
    rivals: bool = False  # whether two algorithms are compared
    metric: str = ""  # in which these are compared
    moment: str = ""  # of a round, at which these were judged: 'mixed' or 'trained'; '': at no such moment
    learnt: bool = True  # whether the first of the two did
    signed: bool = True  # whether the difference has a direction, else it is how far two are apart

    @property
    def error(self) -> float:
        """The standard error of the difference; nan: unknown."""
        return math.hypot(*(each for each, _ in self.parts)) if self.parts else math.nan

    @property
    def margin(self) -> float:
        """The distance of the difference from the asked value; it is positive on the side that the claim asks for."""
        return (self.difference - self.asked) * (1 if self.above else -1)

    @property
    def holds(self) -> bool:
        return self.margin > 0 if self.fact is None else self.fact

    @property
    def counted(self) -> bool:
        """Whether it is a fact that nothing was trained for."""
        return self.fact is not None and self.each != "run"

    @property
    def p(self) -> float:
        """The two-sided p value of the margin, before Holm's correction; 1 for what decides nothing."""
        if self.obstacle or self.one_partition or not (self.fact is not None or math.isfinite(self.margin)):
            return 1.0
        if self.fact is not None or self.chance is not None:
            return self.chance or 0.0
        if self.error == 0:  # without a spread only the side of each seed counts, as in a sign test
            return 2 * 0.5 ** max(self.n, 1) if self.margin else 1.0
        return errors.chance(self.margin / self.error, self.parts) if math.isfinite(self.error) else 1.0

    def visible(self, tests: int, level: float = LEVEL) -> float:
        """The smallest difference from what is asked that would probably have been seen, among `tests` comparisons."""
        if self.one_partition or not math.isfinite(self.error):
            return math.nan
        tails = level / 2 / max(tests, 1), 1 - POWER
        return self.error * sum(errors.quantile(tail, self.parts) for tail in tails)

    def ahead(self, rounds: int) -> float:
        """The expected change of the difference in `rounds` more rounds.

        Each further quarter changes it by a constant share of the change in the quarter before. The share is that of
        the last two quarters where these differ by more than their error, else 1. (With noise alone any curve looks as
        if it slowed down.) A change within its error is continued for one quarter alone.
        """
        before, last = self.quarters
        if not (self.rounds and rounds and last):
            return 0.0
        share, number = last / before if self.slows and before * last > 0 else 1.0, rounds / (self.rounds / 4)
        share = min(share, 1.0)
        if not self.trend:
            return last * min(number, 1.0)
        return last * number if share == 1 else last * share * (1 - share**number) / (1 - share)

    def after(self, rounds: int) -> "Comparison":
        """This comparison; with an obstacle if its sign may change in `rounds` more rounds, see `ahead`.

        Where its movement is not known its words say how many of the paper's rounds there were.
        """
        if self.rounds and rounds and self.quarters == (0.0, 0.0):
            return replace(self, of_rounds=self.rounds + rounds)
        moves = self.ahead(rounds)
        if math.isnan(moves) and not self.obstacle:
            few = f"{self.name}: too few evaluations to say how it moves in the paper's {rounds} further rounds"
            return replace(self, obstacle=few)
        then = self.difference + moves  # how far two are apart has no sign
        stays = ((then if self.signed else abs(then)) - self.asked) * (self.difference - self.asked) >= 0
        if self.obstacle or stays or math.isnan(self.difference):
            return self
        last = self.quarters[1] * (-1 if self.falls else 1)
        moved = format(last, "+.1f" if self.unit == "points" else "+.3g")
        moved = f"but it moved by {moved} in the last {self.rounds / 4:.0f} rounds"
        said = f"{self.name}: {self.number(self.difference)}{self._unit}, {moved}"
        return replace(self, obstacle=f"{said}, and preset paper has {rounds} more")

    def barred(self, reason: str) -> "Comparison":
        """This comparison with an obstacle that does not lie in its runs; its number is told before the reason."""
        if self.obstacle or not reason:
            return self
        return replace(self, obstacle=f"{self.words()}, but {reason}")

    def apart(self, within: float) -> "Comparison":
        """This comparison without its direction: that the difference is at most `within` (a share, where in points)."""
        sign, asked = (-1 if self.difference < 0 else 1), within * (100 if self.unit == "points" else 1)
        about = {"name": f"{self.name}, apart", "asked": asked, "above": False, "difference": sign * self.difference}
        return replace(self, quarters=(sign * self.quarters[0], sign * self.quarters[1]), signed=False, **about)

    def number(self, value: float) -> str:
        if self.unit == "points":
            return f"{value:{'+' * self.signed}.1f}" if abs(value) >= 0.05 else "0.0"
        return f"{value:.3g}"

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    def words(self) -> str:
        """The comparison as a clause: its difference, its error and number of seeds, and what was asked."""
        if self.obstacle or self.said or self.fact is not None:
            return self.obstacle or self.said or self.name
        error = f" ± {self.number(self.error).lstrip('+')}" if math.isfinite(self.error) else ""
        seeds = f"{self.n} {self.each}{'s' * (self.n != 1)}" if self.n else ""
        seeds += " of one partition" if seeds and self.one_partition else ""
        if self.error == 0 and self.n > 1:
            error, seeds = "", f"in all {seeds}"
        asked = f"{'more' if self.above else 'less'} than {self.number(self.asked)} asked" if self.asked else ""
        early = f"{self.rounds} of {self.of_rounds} rounds" if self.of_rounds else ""
        beside = ", ".join(filter(None, (seeds, asked, early)))
        return f"{self.name}: {self.number(self.difference)}{error}{self._unit}" + (f" ({beside})" if beside else "")

    def record(self, adjusted: float, tests: int, level: float) -> dict[str, Any]:
        """The comparison for a result's JSON."""
        if self.fact is not None:
            return {"as claimed": self.fact}
        about = {"difference": self.difference, "asked": self.asked, "above": self.above, "unit": self.unit}
        visible = self.visible(tests, level if self.holds else LEVEL)
        about |= {"error": self.error, "n": self.n, "p": adjusted, "visible": visible}
        about |= {"one partition": True} if self.one_partition else {}
        about |= {"quarters": list(self.quarters)} if self.quarters != (0.0, 0.0) else {}
        return about | ({"obstacle": self.obstacle} if self.obstacle else {})


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p values: if all below 0.05 are believed, one or more is wrong in at most 5 % of cases.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    result, largest = [1.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        result[index] = largest
    return result


def better_higher(metric: str) -> bool:
    """Whether a higher value of a metric is better, judged by words in its name (see `LOWER`).

    >>> [better_higher(name) for name in ("accuracy_unseen", "accuracy_gap", "loss_training", "distance", "f1")]
    [True, False, False, False, True]
    """
    return not any(word in metric for word in LOWER)


def lacking(values: Any, each: str = "seed") -> str:
    """What lacks among values by seed, in words; empty if all are finite numbers.

    >>> lacking([0.5, np.nan, np.inf])
    'no value for 2 of 3 seeds'
    """
    lost = int(np.sum(~np.isfinite(np.asarray(values, float))))
    return f"no value for {lost} of {len(values)} {each}s" if lost else "" if len(values) else f"no {each}s"


def finite(values: Any) -> bool:
    if isinstance(values, str | bool):
        return True
    try:
        return bool(np.isfinite(np.asarray(values, float)).all())
    except (TypeError, ValueError):
        return False


def quarters(rounds: np.ndarray, curves: np.ndarray, num_rounds: int) -> np.ndarray:
    """The changes `[2, S]` of curves `[S, E]` in the third and in the last quarter of their rounds; nan if unknown.

    Each is the slope of a line over the quarter's evaluations, at least three, times the rounds of a quarter.
    """
    found = np.full((2, len(curves)), math.nan)
    for row, (begin, end) in enumerate(((0.5, 0.75), (0.75, 1.0))):
        last = int(np.searchsorted(rounds, end * num_rounds, side="right"))
        first = max(min(int(np.searchsorted(rounds, begin * num_rounds)), last - 3), 0)
        if last - first >= 2 and finite(curves[:, first:last]):
            found[row] = np.polyfit(rounds[first:last], curves[:, first:last].T.astype(float), 1)[0] * num_rounds / 4
    return found


def movement(changes: np.ndarray) -> dict[str, Any]:
    """The fields `quarters`, `slows` and `trend` of a `Comparison`, from changes `[2, S]` of its difference."""
    last, error = float(changes[1].mean()), errors.mean_error(changes[1])
    noise = False
    if math.isfinite(error) and math.isfinite(last):
        within = abs(last) < error * errors.quantile(LEVEL / 2, [(error, len(changes[1]) - 1)])
        noise = within and len(set(np.sign(changes[1]))) > 1  # a trend is beyond its error, or alike in all seeds
    less = np.abs(changes[0]) - np.abs(changes[1])
    spread = [(errors.mean_error(less), len(less) - 1)]
    slows = len(less) > 1 and finite(less) and less.mean() > spread[0][0] * errors.quantile(LEVEL, spread)
    return {"quarters": (float(changes[0].mean()), last), "slows": bool(slows), "trend": not noise}
