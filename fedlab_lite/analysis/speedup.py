"""Speed-up with more workers: rounds to a target, simulated seconds per round, and the log-log slope.

The time of a round is simulated. It cannot be measured, because one machine computes all workers.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from fedlab_lite.engine import History
from fedlab_lite.runs import Settings, algorithm_of, build_problem


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
