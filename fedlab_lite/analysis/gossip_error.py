"""The consensus error of gossip: training adds disagreement between workers, and mixing reduces it.

One round is X <- P (X + U): workers train, which adds U, and then mix with the matrix P. Let D = (I - 1 1^T / N) X be
the differences from the mean. The modes of P, other than the constant one, evolve independently. Each round multiplies
a mode's part of D + U by the mode's eigenvalue lambda_j. The consensus error is
(1/N) ||D||^2, the third term of DePRL's eq. (10). Without training it shrinks by a factor of lambda_2^2 or more per
round. With training it is a sum over the rounds so far.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedlab_lite.engine import History, check_mixing
from fedlab_lite.util import InputError


def predicted(
    matrix: Float[np.ndarray, "N N"], num_rounds: int, *, decay: float = 1.0, same_way: bool = False
) -> Float[np.ndarray, " rounds+1"]:
    """The predicted consensus error e(k) for k = 0 ... num_rounds, starting from e(0) = 0.

    Its unit is the disagreement that training adds in the first round, (1/N) ||U(0)||^2. Each round adds `decay^2`
    times what the round before added, spread evenly over the modes of P.

    Args:
      matrix: P, symmetric and doubly stochastic, such as `Graph.metropolis`.
      decay: factor on the step size per round.
      same_way: whether each worker moves in the same direction in every round, as when workers differ only in their
        data. Otherwise the directions of two rounds are independent, like noise.

    Raises: `InputError` for a matrix that is not symmetric, or that `engine.check_mixing` rejects.

    >>> from fedlab_lite.engine import make_graph
    >>> predicted(make_graph("complete", 5).metropolis, 2).round(6).tolist()
    [0.0, 0.0, 0.0]
    >>> ring = make_graph("ring", 4).metropolis  # lambda: 1, 1/3, 1/3, -1/3
    >>> predicted(ring, 2).round(4).tolist(), predicted(ring, 2, same_way=True).round(4).tolist()
    ([0.0, 0.1111, 0.1235], [0.0, 0.1111, 0.1481])
    """
    check_mixing(matrix, doubly=True)
    matrix = np.asarray(matrix, float)
    if not np.allclose(matrix, matrix.T):
        raise InputError("the mixing matrix is not symmetric; use a symmetric one, such as Metropolis weights")
    modes = np.linalg.eigvalsh(matrix)[:-1]
    powers, pull = (1, decay) if same_way else (2, decay**2)
    parts = [np.zeros_like(modes)]
    for index in range(num_rounds):
        parts.append(modes**powers * (parts[-1] + pull**index))
    return np.mean(np.abs(parts) ** (3 - powers), axis=1)


class Hump(NamedTuple):
    """The rise, fall and peak of a curve per seed `[S]`; rise and fall are natural logarithms of ratios."""

    rise: np.ndarray  # from the first round after the start to the peak
    fall: np.ndarray  # from the peak to the end
    peak: np.ndarray


def hump(run: History, metric: str = "consensus_error") -> Hump:
    """The rise and fall of a curve that starts at 0; both are above 0 if it rises and then falls.

    A curve's highest point is above its first and last point by construction. So the peak of a seed is taken at the
    round where the mean of the other seeds has its highest point. Then both logarithms can be negative. The start is
    left out, because all workers start with the same representation, which is an error of 0. The result is nan if
    there is no later evaluation.

    Example:
      >>> from dataclasses import replace
      >>> from fedlab_lite.runs import Settings, run
      >>> base = run(Settings(num_clients=4, num_rounds=1, model_options={"width": 8}))
      >>> curve = np.array([[0, 1, 4, 2], [0, 2, 3, 1]])
      >>> found = hump(replace(base, rounds=np.arange(4), metrics={"error": curve}), "error")
      >>> np.exp(found.rise).round(2).tolist(), np.exp(found.fall).round(2).tolist(), found.peak.tolist()
      ([4.0, 1.5], [2.0, 3.0], [2, 2])
    """
    after = run.rounds > 0
    curve, at = run.metrics[metric][:, after].astype(float), run.rounds[after]
    if not len(at):
        nothing = np.full(len(curve), np.nan)
        return Hump(nothing, nothing, nothing)
    others = curve.sum(0) - curve if len(curve) > 1 else curve
    peak = others.argmax(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(curve)
        top = logs[np.arange(len(curve)), peak]
        return Hump(top - logs[:, 0], top - logs[:, -1], at[peak])
