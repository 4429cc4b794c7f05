"""Speed-up with more workers: rounds to a target, simulated seconds per round, and the log-log slope.

The time of a round is simulated. It cannot be measured, because one machine computes all workers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from fedlab_lite.engine import History
from fedlab_lite.runs import Settings, algorithm_of, build_problem
from fedlab_lite.util import InputError


def rounds_to(run: History, metric: str, target: float, *, above: bool = True) -> Float[np.ndarray, " S"]:
    """The round at which a curve first reaches the target, per seed; nan if it never does.

    Rounds between two evaluations are interpolated linearly.

    Args:
      above: whether the curve reaches the target from below.

    Raises: `InputError` for a metric that the run does not have.

    Example:
      >>> from dataclasses import replace
      >>> from fedlab_lite.runs import run
      >>> base = run(Settings(num_clients=4, num_rounds=1, model_options={"width": 8}))
      >>> falling = replace(base, rounds=np.array([0, 10, 20]), metrics={"loss": np.array([[4.0, 2.0, 1.0]])})
      >>> rounds_to(falling, "loss", 3.0, above=False).tolist(), rounds_to(falling, "loss", 0.5, above=False).tolist()
      ([5.0], [nan])
    """
    sign = 1 if above else -1
    curve = sign * run.values(metric).astype(float)
    found = np.full(len(curve), np.nan)
    for seed, values in enumerate(curve):
        reached = np.flatnonzero(values >= sign * target)
        if len(reached):
            last = reached[0]
            before = max(last - 1, 0)
            step = values[last] - values[before]
            share = (sign * target - values[before]) / step if 0 < step < np.inf else 1.0
            found[seed] = run.rounds[before] + share * (run.rounds[last] - run.rounds[before])
    return found


def highest_mean(run: History, metric: str) -> History:
    """The run with a metric replaced by the highest of its means over the evaluations so far, from each round on.

    DePRL's eq. (9) asks for a small mean of M(k), eq. (10). A curve of highest means is below a level only where the
    mean stays below it.

    Raises: `InputError` for a metric that the run does not have.
    """
    curve = run.values(metric).astype(float)
    means = np.cumsum(curve, 1) / np.arange(1, curve.shape[1] + 1)
    return replace(run, metrics=run.metrics | {metric: np.maximum.accumulate(means[:, ::-1], 1)[:, ::-1]})


@dataclass(frozen=True)
class SpeedUp:
    """Runs with several numbers of workers, and the rounds in which they converge; `speed_up` makes it.

    A run has converged when its training loss has fallen to L*, see `level`. A run that has measured M(k), DePRL's
    eq. (10), is judged once more, under its name with "_m": by the mean of M(k) over the rounds so far, eq. (9).

    Attributes:
      judged: runs by name, "column/method".
      workers: names of runs by number of workers, for each pair of a data set and a method.
    """

    judged: dict[str, History]
    workers: dict[tuple[str, str], dict[int, str]]

    def level(self, dataset: str, method: str, share: float = 0.5) -> float:
        """L*: this share of the way from DePRL's start to its largest final loss, for all numbers of workers and seeds.

        Each reading of DePRL has its own L*, other methods have that of DePRL with passes. It is nan unless the largest
        final loss is below the mean start. Means of M(k) start at the smallest peak of a run.

        Raises: `InputError` where DePRL did not run.
        """
        own = method if method.startswith("deprl") else "deprl"
        if (dataset, own) not in self.workers:
            raise InputError(f"L* is that of DePRL, and no run of {own} on {dataset} is here; run it, too")
        metric = _criterion(own)
        curves = [self.judged[name].values(metric).astype(float) for name in self.workers[dataset, own].values()]
        first = np.min if metric == "stationarity" else np.mean
        start, worst = first([curve[:, 0] for curve in curves]), np.max([curve[:, -1] for curve in curves])
        return float(start + share * (worst - start)) if worst < start else np.nan

    def rounds(self, share: float = 0.5) -> dict[str, Float[np.ndarray, " S"]]:
        """The rounds of each run to L*, per seed; nan if it never comes so far."""
        found = {}
        for (dataset, method), names in self.workers.items():
            goal, metric = self.level(dataset, method, share), _criterion(method)
            found |= {name: rounds_to(self.judged[name], metric, goal, above=False) for name in names.values()}
        return {name: found[name] for name in self.judged}

    def slopes(self, values: Mapping[str, Float[np.ndarray, " S"]]) -> dict[tuple[str, str], Float[np.ndarray, " S"]]:
        """The `slope` of values by run against the number of workers; without methods whose runs have no values."""
        return {key: slope(list(names), found) for key, names, found in self._complete(values)}

    def errors(self, values: Mapping[str, Float[np.ndarray, " S"]]) -> dict[tuple[str, str], dict[str, float]]:
        """The `slope_error` of each slope and its degrees of freedom, for `papers.verdicts.observed`."""
        found = {key: slope_error(list(names), each) for key, names, each in self._complete(values)}
        return {key: {"error": error, "freedom": freedom} for key, (error, freedom) in found.items()}

    def _complete(self, values: Mapping) -> Iterator[tuple[tuple[str, str], dict[int, str], list]]:
        for key, names in self.workers.items():
            if set(names.values()) <= values.keys():
                yield key, names, [values[each] for each in names.values()]


def speed_up(histories: Mapping[str, History]) -> SpeedUp:
    """The runs of a notebook, named "column/method", by data set, method and number of workers.

    Raises: `InputError` for two runs that share all three.

    Example:
      >>> from fedlab_lite.runs import run
      >>> base = {"num_rounds": 1, "model_options": {"width": 8}, "algorithm": "deprl", "graph": "ring"}
      >>> base |= {"judge_training": True}
      >>> speed = speed_up({f"glyphs_{n}/deprl": run(Settings(num_clients=n, **base)) for n in (4, 8)})
      >>> speed.workers
      {('glyphs', 'deprl'): {4: 'glyphs_4/deprl', 8: 'glyphs_8/deprl'}}
    """
    judged, workers = dict(histories), {}
    for name, run in histories.items():
        if "stationarity" in run.metrics:
            judged[f"{name}_m"] = highest_mean(run, "stationarity")
    for name, run in judged.items():
        names = workers.setdefault((run.settings.dataset, name.rpartition("/")[2]), {})
        if (twin := names.setdefault(run.settings.num_clients, name)) != name:
            raise InputError(f"{twin} and {name} share data set, method and number of workers; leave one of them out")
    return SpeedUp(judged, workers)


def _criterion(method: str) -> str:
    return "stationarity" if method.endswith("_m") else "loss_training"


def local_steps(settings: Settings) -> int:
    """The number of local steps of the slowest worker in a round, of head and body: its passes in batches, or steps."""
    algorithm, total = algorithm_of(settings), 0
    if getattr(algorithm, "order", "") == "together":
        return 1
    batches = -(-build_problem(settings).data.size // algorithm.batch_size)
    for part in ("", "head_", "personal_"):
        steps = getattr(algorithm, f"{part}steps", None)  # None: passes
        total += getattr(algorithm, f"{part}epochs", 0) * int(batches.max()) if steps is None else steps
    return int(total)


def seconds_a_round(settings: Settings, run: History, *, step_seconds: float, bandwidth: float) -> tuple[float, float]:
    """The simulated seconds per round for computing and for sending.

    All workers compute at the same time, wait for the slowest one, and then send.

    Args:
      step_seconds: seconds per local step.
      bandwidth: bytes per second that a worker can send and, at the same time, receive.

    Returns: seconds for the slowest worker's local steps, and seconds for its messages to all neighbours (without a
      server) or to the server.
    """
    graph = build_problem(settings).graph
    links = 1 if graph is None else float(np.max(graph.degree))
    return local_steps(settings) * step_seconds, links * run.message_bytes["up"] / bandwidth


def slope(numbers: Float[np.ndarray, " n"], values: Float[np.ndarray, " n *S"]) -> Float[np.ndarray, " *S"]:
    """The least-squares slope of log(values) on log(numbers) per seed; -1: time is proportional to 1 / numbers.

    >>> round(float(slope([4, 8, 16], [100.0, 50.0, 25.0])), 6)
    -1.0
    >>> round(float(slope([4, 8, 16, 32], [602.7, 331.2, 205.3, 149.8])), 2)  # DePRL on CIFAR-100, its Table 9
    -0.67
    """
    x = np.log(np.asarray(numbers, float))
    x = x - x.mean()
    with np.errstate(divide="ignore", invalid="ignore"):  # times that are 0 or nan
        return np.tensordot(x, np.log(np.asarray(values, float)), 1) / np.sum(x * x)


def slope_error(numbers: Float[np.ndarray, " n"], values: Float[np.ndarray, " n *S"]) -> tuple[float, int]:
    """The standard error of a `slope` because the points are on no line, and its degrees of freedom, n - 2.

    Each number of workers has one partition, so this error contains the partition's. The seeds' is in it too, as the
    points are means over seeds. It is nan for two points.

    >>> error, freedom = slope_error([1, 2, 4], [8.0, 2.0, 2.0])
    >>> round(error, 3), freedom
    (0.577, 1)
    """
    x, freedom = np.log(np.asarray(numbers, float)), len(numbers) - 2
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(np.asarray(values, float)).reshape(len(x), -1).mean(1)
    x, y = x - x.mean(), y - y.mean()
    rest = y - x * np.mean(slope(numbers, values))
    return float(np.sqrt(rest @ rest / freedom / (x @ x))) if freedom > 0 else np.nan, freedom
