"""Membership inference by the loss: rows of small loss were probably trained on (Yeom et al. 2018, arXiv:1709.01604).

The success of an attack is a lower bound on the leak; `advantage_bound` is the upper bound of differential privacy.
The upper bound holds for models that are made from noised messages. A personal model that never leaves its client is
not protected by the noise: it can reveal its training rows to anyone who obtains it.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fedlab_lite.engine import ClientData, Problem, in_chunks, rows_of, to_host
from fedlab_lite.util import InputError


class Membership(NamedTuple):
    """How well an attack separates members from other rows; `advantage` is from 0 (guessing) to 1 (always right)."""

    advantage: float  # true positive rate minus false positive rate at the best threshold
    error: float  # its standard error over rows, for a fixed threshold
    by_chance: float  # the mean advantage of the best threshold if members and others did not differ
    threshold: float  # in nats; rows with a loss at or below it count as members; -inf: none does
    auc: float  # the probability that a member's loss is below another row's, ties count half; 0.5: guessing
    auc_error: float  # its standard error (DeLong et al. 1988)


def membership_advantage(members: Shaped[np.ndarray, " m"], others: Shaped[np.ndarray, " n"]) -> Membership:
    """The result of the attack "loss <= threshold" on m training rows and n other rows (losses in nats).

    The best threshold is chosen on the same rows that it is judged by. So the advantage is never negative, and by
    chance it is above 0, on average by `by_chance`. 2 auc - 1 has no such bias. The standard errors assume independent
    rows. Raises `InputError`.

    Example:
      >>> found = membership_advantage(np.array([0.1, 0.2, 0.3]), np.array([0.3, 2.0, 3.0, 4.0]))
      >>> round(found.advantage, 3), found.threshold, round(found.auc, 3)
      (0.75, 0.3, 0.958)
    """
    members, others = (np.sort(np.asarray(losses, float).ravel()) for losses in (members, others))
    for losses, what in ((members, "members"), (others, "others")):
        if len(losses) < 2:
            raise InputError(f"there are {len(losses)} losses of {what}; the attack needs at least two")
        if np.isnan(losses).any():
            raise InputError(f"some losses of {what} are NaN; the attack needs a model that has not diverged")
    m, n = len(members), len(others)
    thresholds = np.concatenate([[-math.inf], members])  # between these the true positive rate is constant
    found, wrong = (np.searchsorted(losses, thresholds, "right") / len(losses) for losses in (members, others))
    best = int(np.argmax(found - wrong))
    spread = found[best] * (1 - found[best]) / m + wrong[best] * (1 - wrong[best]) / n
    above = 1 - _rank(others, members)  # [m]: the share of others above each member
    below = _rank(members, others)  # [n]: the share of members below each other row
    return Membership(
        advantage=float(found[best] - wrong[best]),
        error=math.sqrt(spread),
        by_chance=math.sqrt(math.pi / 8 * (1 / m + 1 / n)),  # mean of the one-sided Kolmogorov-Smirnov statistic
        threshold=float(thresholds[best]),
        auc=float(above.mean()),
        auc_error=math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n),
    )


def _rank(losses: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The share of the sorted `losses` below each value of `at`; ties count half."""
    return (np.searchsorted(losses, at, "left") + np.searchsorted(losses, at, "right")) / (2 * len(losses))


def advantage_bound(epsilon: float, delta: float) -> float:
    """The largest advantage of any attack under (epsilon, delta)-differential privacy (Kairouz et al. 2015).

    It is (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), for neighbouring data sets that differ in one row.

    >>> advantage_bound(0.0, 0.0), round(advantage_bound(1.0, 1e-5), 3)
    (0.0, 0.462)
    """
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise InputError(f"epsilon = {epsilon}, delta = {delta}: epsilon must be 0 or more, and delta from 0 to 1")
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0))))


def row_losses(problem: Problem, own: dict, shared: dict, *, chunk: int = 100) -> tuple[list, list]:
    """The losses of each client's model on its training rows and on its test rows.

    The model of client i is `shared | own_i`.

    Args:
      own, shared: as for `engine.evaluate`, for example from `Algorithm.models`. To measure the leak of the server's
        feature extractor, put it into `shared` and the clients' heads into `own`.
      chunk: rows per forward pass.

    Returns: two lists with one array per client and one number per row, in the order of the data. The number of a text
      is the mean over its characters. `np.concatenate` pools the arrays, for one threshold for all clients.

    Example (an untrained model leaks nothing):
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=40, test_size=40)
      >>> problem = Problem(data, make_model("mlp", data.input_shape, data.num_classes, width=8))
      >>> members, others = row_losses(problem, {}, problem.model.init(jax.random.key(0)))
      >>> [len(losses) for losses in members], len(others)
      ([10, 10, 10, 10], 4)
    """
    data = problem.data
    train, test = ClientData(data.x, data.y, data.size), ClientData(data.test_x, data.test_y, data.test_size)
    found = _losses(problem, own, shared, train, chunk=chunk)
    if data.common_test:
        everyone = jnp.arange(data.num_clients)
        losses = _losses(problem, own, shared, everyone, rows_of(test, 0), chunk=chunk)
        sizes = np.repeat(np.asarray(data.test_size), data.num_clients)
    else:
        losses, sizes = _losses(problem, own, shared, test, chunk=chunk), np.asarray(data.test_size)
    return _cut(found, np.asarray(data.size)), _cut(losses, sizes)


def _cut(losses: Float[Array, "clients n"], sizes: np.ndarray) -> list[np.ndarray]:
    return [row[:size] for row, size in zip(to_host(losses), sizes, strict=True)]


@partial(jax.jit, static_argnames="chunk")
def _losses(problem: Problem, own: dict, shared: dict, rows: Any, common: ClientData | None = None, *, chunk: int):
    """The losses `[clients, n]` on each client's rows, or on the `common` rows; then `rows` only count the clients."""

    def one(rows, own, shared, common):
        def losses(batch):
            x, y = batch
            labels = problem.task.row_loss(problem.model.apply(shared | own, x), y)
            counted = problem.task.counted(y, jnp.ones(y.shape[0]))
            labels, counted = (each.reshape(len(y), -1) for each in (labels, counted))
            return (labels * counted).sum(1) / jnp.maximum(counted.sum(1), 1)

        rows = rows if common is None else common
        return in_chunks(losses, (rows.x, rows.y), rows.size, chunk)

    return problem.for_clients(one, rows, own, shared=(shared, common))
