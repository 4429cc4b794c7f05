"""How the consensus error of gossip rises and falls: what mixing makes of the disagreement that training adds.

One round is X <- P (X + U): workers train, U, and mix. Of the differences from the mean, D = (I - 1 1^T / N) X, every
mode of P other than the constant one goes by itself: its part of D is multiplied by its eigenvalue lambda_j, and so is
what U adds to it. So the error (1/N) ||D||^2, the third term of DePRL's eq. (10), shrinks by lambda_2^2 a round or more
where nobody trains, and where all do it is a sum over the rounds so far.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedlab_lite.engine import History, check_mixing
from fedlab_lite.util import InputError


def predicted(
    matrix: Float[np.ndarray, "N N"], num_rounds: int, *, decay: float = 1.0, same_way: bool = False
) -> Float[np.ndarray, " rounds+1"]:
    """e(k) for k = 0 ... num_rounds, from e(0) = 0, in units of what the first round's training adds, (1/N) ||U(0)||^2.

    Each round adds `decay^2` times what the last one did, evenly over the modes of P.

    Args:
      matrix: P, symmetric and doubly stochastic, such as `Graph.metropolis`.
      decay: of the step size, a round.
      same_way: whether every worker pulls the same way in every round, as it does where only its data set it apart;
        else each round's pull has nothing to do with the one before, as noise has.

    Raises: `InputError` for a matrix that is not symmetric, or for what `engine.check_mixing` raises it.

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
        raise InputError("the mixing matrix is not symmetric, so its modes do not go each by itself; take Metropolis'")
    modes = np.linalg.eigvalsh(matrix)[:-1]
    powers, pull = (1, decay) if same_way else (2, decay**2)
    parts = [np.zeros_like(modes)]
    for index in range(num_rounds):
        parts.append(modes**powers * (parts[-1] + pull**index))
    return np.mean(np.abs(parts) ** (3 - powers), axis=1)


class Hump(NamedTuple):
    """Of every seed, `[S]`: natural logarithms of ratios, and the round of the peak."""

    rise: np.ndarray  # of the peak to the first round after the start
    fall: np.ndarray  # of the peak to the end
    peak: np.ndarray


def hump(run: History, metric: str = "consensus_error") -> Hump:
    """Whether a curve that starts at 0 rises and then falls: both ratios are above 0 if it does.

    A curve's highest point is above its first and its last by its choice alone, so a seed's peak is looked up where the
    mean of the other seeds has it; then both can come out below 0. The start does not count: everybody starts with the
    same representation, an error of 0. nan where nothing was judged after it.

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
