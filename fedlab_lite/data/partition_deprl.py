"""DePRL's partition: unequal shares of every class, in which a client gets no more once it has its equal part."""

import numpy as np

from fedlab_lite.data.partition import Indices, apportion, deal, label_counts
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Count, Positive, Seed, checks_arguments


@checks_arguments
def dirichlet_capped(
    y_train: np.ndarray, y_test: np.ndarray, num_clients: Count, alpha: Positive, *, seed: Seed, max_draws: int = 1000
) -> tuple[Indices, Indices, int]:
    """Divide class by class in proportions drawn from Dir(alpha), in which a client that is full gets no share.

    A client is full when it has n / num_clients of the n training samples from the earlier classes. The whole draw is
    repeated until each client has as many training samples as there are classes C. The test samples of a class are
    divided in the same proportions. A client whose shares all round to zero gets one test sample. (The reference code
    intends the same, but draws new proportions for the test samples. It also draws without end if each draw leaves some
    client with too few samples. This happens with few classes and a small `alpha`, for example five classes, alpha 0.1
    and 128 clients.)
    After `max_draws` draws, the draw with the fewest missing samples is used, and those samples are moved.

    A client that lacks a sample gets one of the class that it should have most of. It comes from the client with most
    samples of that class that can spare one.

    Returns: train, test, and the number of training samples moved in this way.

    Raises: `InputError` unless there are C training samples and one test sample per client. It is also raised for an
      `alpha` so small that the clients that are not full get no samples.

    >>> y = np.repeat(np.arange(2), 50)
    >>> train, test, given = dirichlet_capped(y, y[::5], 4, 1.0, seed=0)
    >>> sum(map(len, train)), sum(map(len, test)), given
    (100, 20, 0)
    """
    rng = np.random.default_rng(seed)
    classes, totals = label_counts(y_train, y_test)
    for each, least, kind in ((totals[0], len(classes), "training"), (totals[1], 1, "test")):
        if each.sum() < num_clients * least:
            raise InputError(
                f"'dirichlet_capped' needs {least} {kind} samples for each of {num_clients} clients, but there are "
                f"{each.sum()}; use fewer clients or more samples"
            )
    best: tuple[int, np.ndarray, np.ndarray] | None = None
    for _ in range(max_draws):
        shares, counts = _drawn(totals[0], num_clients, alpha, rng)
        lacking = int(np.maximum(len(classes) - counts.sum(0), 0).sum())
        if shares.any(1).all() and (best is None or lacking < best[0]):
            best = lacking, shares, counts
        if best and best[0] == 0:
            break
    if best is None:
        raise InputError(f"in {max_draws} draws of Dir({alpha}) some class had only full clients left; increase alpha")
    given, shares, counts = best
    _give(counts, shares * totals[0][:, None], len(classes))
    test_counts = np.array([apportion(share, n) for share, n in zip(shares, totals[1], strict=True)])
    _give(test_counts, counts, 1)
    return deal(y_train, classes, counts, rng), deal(y_test, classes, test_counts, rng), given


def _drawn(
    totals: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw shares and counts `[classes, clients]`; both are zero for a class that would go to full clients only."""
    shares = rng.dirichlet(np.full(num_clients, alpha), len(totals))
    counts = np.zeros(shares.shape, int)
    for k, n in enumerate(totals):
        shares[k, counts.sum(0) >= totals.sum() / num_clients] = 0
        if shares[k].any():
            shares[k] /= shares[k].sum()
            counts[k] = apportion(shares[k], n)
    return shares, counts


def _give(counts: np.ndarray, wanted: np.ndarray, least: int) -> None:
    """Move samples, one by one and in place, until every client has `least` in `counts [classes, clients]`.

    A client gets samples of the class with its largest `wanted`. They come from the client that has most of this class
    among those with more than `least` samples in total. Where there is no such client, the next class is used.
    """
    held = counts.sum(0)
    for client in np.flatnonzero(held < least):
        for label in np.argsort(-wanted[:, client], kind="stable"):
            while held[client] < least:
                spare = np.where(held > least, counts[label], 0)
                giver = spare.argmax()
                if not spare[giver]:
                    break
                for place, change in ((giver, -1), (client, 1)):
                    counts[label, place] += change
                    held[place] += change
