"""The arithmetic of verdicts: one comparison with its error, p values, Holm's correction, and visible differences.

A difference has two independent errors: over seeds, and over clients and test rows. Their squares add up. Degrees of
freedom follow Welch and Satterthwaite: they are those of the seeds alone where the seeds' error dominates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedlab_lite.engine import History
from fedlab_lite.runs import moment_of

LOWER = ("loss", "distance", "error", "gap", "residual")  # a metric whose name has one of these words: lower is better
LEVEL = 0.05  # two-sided: equal methods get either word in at most this share of claims
POWER = 0.8  # with which the smallest visible difference would be seen


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: a difference, what the claim asks of it, and its uncertainty.

    Differences of accuracies are in points (percent), others in the metric's unit. `fact` is set for what is counted
    or derived; then no statistics are needed.

    Example:
      >>> found = Comparison("A against B", 2.0, error=0.5, freedom=2, n=3, unit="points")
      >>> round(found.p, 3), found.holds, found.words()
      (0.057, True, 'A against B: +2.0 ± 0.5 points (3 seeds)')
    """

    name: str
    difference: float
    asked: float = 0.0  # the claim holds above it, or below it
    above: bool = True
    error: float = math.nan  # standard error; nan: unknown
    freedom: float = math.nan  # degrees of freedom of the error
    n: int = 0  # seeds, draws, ...
    each: str = "seed"  # what a value belongs to
    unit: str = ""
    quarters: tuple[float, float] = (0.0, 0.0)  # change of the difference in the third and the last quarter of training
    trend: bool = True  # whether the last quarter's change exceeds its error; else it is noise, and ends with a quarter
    rounds: int = 0  # that were trained
    of_rounds: int = 0  # the paper's, if it is not known how the difference moves until then
    obstacle: str = ""  # why it decides nothing, whatever its number
    fact: bool | None = None
    chance: float | None = None  # p value of a share of yes and no; None: from the error
    said: str = ""  # the clause, where it is not "name: difference ± error"
    pair: tuple[str, str] | None = None  # names of the runs, of a comparison of two
    data: str = ""  # the data set
    partition: str = ""  # of the data, in words
    rivals: bool = False  # whether two algorithms are compared
    metric: str = ""  # in which these are compared
    moment: str = ""  # of a round, at which these were judged: 'mixed' or 'trained'; '': at no such moment
    learnt: bool = True  # whether the first of the two did

    @property
    def margin(self) -> float:
        """The distance of the difference from the asked value; it is positive on the side that the claim asks for."""
        return (self.difference - self.asked) * (1 if self.above else -1)

    @property
    def holds(self) -> bool:
        return self.margin > 0 if self.fact is None else self.fact

    @property
    def p(self) -> float:
        """The two-sided p value of the margin, before Holm's correction; 1 if there is an obstacle."""
        if self.obstacle or not (self.fact is not None or math.isfinite(self.margin)):
            return 1.0
        if self.fact is not None:
            return 0.0
        if self.chance is not None:
            return self.chance
        if self.error == 0:
            return 0.0 if self.margin else 1.0
        from scipy.stats import t

        return float(2 * t.sf(abs(self.margin) / self.error, self.freedom)) if math.isfinite(self.error) else 1.0

    def visible(self, tests: int, level: float = LEVEL) -> float:
        """The smallest difference from what is asked that would probably have been seen, among `tests` comparisons."""
        if not math.isfinite(self.error):
            return math.nan
        from scipy.stats import t

        return float(self.error * (t.isf(level / 2 / max(tests, 1), self.freedom) + t.isf(1 - POWER, self.freedom)))

    def ahead(self, rounds: int) -> float:
        """The expected change of the difference in `rounds` more rounds.

        Each further quarter changes it by a constant share of the change in the quarter before. The share is that of
        the last two quarters, and at most 1. A change within its error is continued for one quarter alone.
        """
        before, last = self.quarters
        if not (self.rounds and rounds and last):
            return 0.0
        share, number = min(max(last / before, 0.0), 1.0) if before * last > 0 else 1.0, rounds / (self.rounds / 4)
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
        signed = moves * (1 if self.above else -1)
        if self.obstacle or not abs(signed) > abs(self.margin) or signed * self.margin > 0:
            return self
        moved = f"{self.name}: {self.number(self.difference)}{self._unit}, but in the paper's {rounds} further rounds"
        return replace(self, obstacle=f"{moved} its curves may move by {self.number(moves)}")

    def apart(self, within: float) -> "Comparison":
        """This comparison without its direction: that the difference is at most `within` (a share, where in points)."""
        sign, asked = (-1 if self.difference < 0 else 1), within * (100 if self.unit == "points" else 1)
        about = {"name": f"{self.name}, apart", "asked": asked, "above": False, "difference": sign * self.difference}
        return replace(self, quarters=(sign * self.quarters[0], sign * self.quarters[1]), **about)

    def number(self, value: float) -> str:
        return f"{value:+.1f}" if self.unit == "points" else f"{value:.3g}"

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    def words(self) -> str:
        """The comparison as a clause: its difference, its error and number of seeds, and what was asked."""
        if self.obstacle or self.said or self.fact is not None:
            return self.obstacle or self.said or self.name
        error = f" ± {self.number(self.error).lstrip('+')}" if math.isfinite(self.error) else ""
        seeds = f"{self.n} {self.each}{'s' * (self.n != 1)}" if self.n else ""
        asked = f"{'more' if self.above else 'less'} than {self.number(self.asked)} asked" if self.asked else ""
        early = f"{self.rounds} of {self.of_rounds} rounds" if self.of_rounds else ""
        beside = ", ".join(filter(None, (seeds, asked, early)))
        return f"{self.name}: {self.number(self.difference)}{error}{self._unit}" + (f" ({beside})" if beside else "")

    def record(self, adjusted: float, tests: int) -> dict[str, Any]:
        """The comparison for a result's JSON."""
        if self.fact is not None:
            return {"as claimed": self.fact}
        about = {"difference": self.difference, "asked": self.asked, "above": self.above, "unit": self.unit}
        about |= {"error": self.error, "n": self.n, "p": adjusted, "visible": self.visible(tests)}
        return about | ({"obstacle": self.obstacle} if self.obstacle else {})


def metric_at(run: History, metric: str, moment: str) -> str:
    """The name of a run's metric at a moment of a round: without a suffix where the run reports that moment itself.

    Args:
      moment: 'mixed' or 'trained'; '': the run's own.
    """
    return metric if moment_of(run) in ("", moment) or not moment else f"{metric}_{moment}"


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


def combined(*parts: tuple[float, float]) -> tuple[float, float]:
    """The error of a sum of independent parts, (standard error, degrees of freedom) each, and its degrees of freedom.

    >>> combined((3.0, 2.0), (4.0, math.inf))
    (5.0, 15.432098765432098)
    """
    error = math.hypot(*(each for each, _ in parts))
    spent = sum(each**4 / freedom for each, freedom in parts if freedom)
    return error, error**4 / spent if spent else math.inf


def share_chance(hits: int, tries: int, asked: float) -> tuple[float, tuple[float, float]]:
    """The exact two-sided binomial p value of `hits` of `tries` where the share `asked` is expected.

    Returns: it, and the 95 % interval of the share by Clopper and Pearson.

    >>> chance, (low, high) = share_chance(0, 3, 0.5)
    >>> chance, low, round(high, 3)
    (0.25, 0.0, 0.708)
    """
    from scipy.stats import binomtest

    found = binomtest(hits, tries, min(max(asked, 0.0), 1.0))
    interval = found.proportion_ci(1 - LEVEL)
    return float(found.pvalue), (float(interval.low), float(interval.high))


def with_seeds(run: History, seeds: list[int]) -> History:
    """A run restricted to the given seeds."""
    rows = [run.seeds.index(seed) for seed in seeds]
    metrics = {name: values[rows] for name, values in run.metrics.items()}
    diverged = tuple(run.diverged[row] for row in rows)
    return replace(run, seeds=tuple(seeds), metrics=metrics, client_curves=run.client_curves[rows], diverged=diverged)


def better_higher(metric: str) -> bool:
    """Whether a higher value of a metric is better, judged by words in its name (see `LOWER`).

    >>> [better_higher(name) for name in ("accuracy_unseen", "accuracy_gap", "loss_training", "distance", "f1")]
    [True, False, False, False, True]
    """
    return not any(word in metric for word in LOWER)


def is_share(metric: str) -> bool:
    return metric.startswith("accuracy")


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


def mean_error(values: np.ndarray) -> float:
    """The standard error of a mean; nan for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def sampling_error(runs: Sequence[History], metric: str) -> tuple[float, float]:
    """The error of a difference of two runs over the draw of clients and of test rows, and its degrees of freedom.

    Of the headline it is the spread of the clients' own differences, which holds their test rows too. Where all clients
    share one test set its rows are a further, common draw. Of newcomers it is estimated from the training clients, as
    a run keeps their mean alone. Of a gap between two clients it is that of their rows. Of other metrics than
    accuracies it is unknown, and only seeds count.
    """
    if not is_share(metric):
        return 0.0, math.inf
    clients = [run.client_accuracy.mean(0) for run in runs]
    shares = [float(np.clip(each.mean(), 0, 1)) for each in clients]
    a_client = max(min(run.test_labels.get("a client", 1) for run in runs), 1)
    if metric.endswith("_gap"):
        return math.sqrt(sum(2 * share * (1 - share) / a_client for share in shares)), math.inf
    if clients[0].shape == clients[1].shape:
        parts = [(mean_error(clients[0] - clients[1]), len(clients[0]) - 1)] if len(clients[0]) > 1 else []
    else:
        parts = [(mean_error(each), len(each) - 1) for each in clients if len(each) > 1]
    if "_unseen" in metric and runs[0].settings and (joined := runs[0].settings.unseen_clients):
        return combined(*((error * math.sqrt((freedom + 1) / joined), freedom) for error, freedom in parts))
    labels = runs[0].test_labels
    if labels.get("all") == labels.get("a client") or not parts:
        parts.append((math.sqrt(sum(share * (1 - share) / a_client for share in shares)), math.inf))
    return combined(*parts)


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
    """The fields `quarters` and `trend` of a `Comparison`, from changes `[2, S]` of its difference."""
    last, error = float(changes[1].mean()), mean_error(changes[1])
    noise = False
    if math.isfinite(error) and math.isfinite(last):
        from scipy.stats import t

        noise = abs(last) < error * t.isf(LEVEL / 2, len(changes[1]) - 1)
    return {"quarters": (float(changes[0].mean()), last), "trend": not noise}
