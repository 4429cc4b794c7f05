"""DePRL's partition: unequal shares of every class, in which no client gets more once it has its part of the whole."""

import numpy as np

from fedlab_lite.data.partition import Indices, apportion, deal, label_counts
from fedlab_lite.errors import InputError


def dirichlet_capped(
    y_train: np.ndarray, y_test: np.ndarray, num_clients: int, alpha: float, *, seed: int, max_draws: int = 1000
) -> tuple[Indices, Indices, int]:
    """DePRL's clients: class by class in proportions drawn from Dir(alpha), of which a client that is full gets none.

    Full is who has n / num_clients of the n training samples from the classes before. All is drawn again until each
    client has as many training samples as there are classes C. The test samples of a class are dealt in the same
    proportions, and a client whose shares all round to none gets one. (The reference code means to, but draws anew for
    the test samples; and it draws without end where few classes and small `alpha` leave some client short every time:
    five classes, alpha 0.1 and 128 clients.) After `max_draws` the draw that is short of fewest is taken, and what its
    clients lack is given to them.

    Who is given a sample gets one of the class that it should have most of, from the client with most of that class
    that can spare one.

    Returns: train, test, and how many training samples were given so.

    Raises: `InputError` unless there are C training samples and one test sample a client, or for an `alpha` so small
      that the clients which are not full get nothing at all.

    >>> y = np.repeat(np.arange(2), 50)
    >>> train, test, given = dirichlet_capped(y, y[::5], 4, 1.0, seed=0)
    >>> sum(map(len, train)), sum(map(len, test)), given
    (100, 20, 0)
    """
    rng = np.random.default_rng(seed)
    classes, totals = label_counts(y_train, y_test, num_clients, alpha)
    for each, least, kind in ((totals[0], len(classes), "training"), (totals[1], 1, "test")):
        if each.sum() < num_clients * least:
            raise InputError(
                f"{num_clients} clients need {least} {kind} samples each, as 'dirichlet_capped' has it, but there are "
                f"{each.sum()}; use fewer clients or more samples"
            )
    fewest = None
    for _ in range(max_draws):
        shares = rng.dirichlet(np.full(num_clients, alpha), len(classes))
        drawn = np.zeros(shares.shape, int)
        for k, n in enumerate(totals[0]):
            shares[k, drawn.sum(0) >= len(y_train) / num_clients] = 0
            if not shares[k].any():
                break
            shares[k] /= shares[k].sum()
            drawn[k] = apportion(shares[k], n)
        else:
            lacking = np.maximum(len(classes) - drawn.sum(0), 0).sum()
            if fewest is None or lacking < fewest:
                fewest, proportions, counts = lacking, shares, drawn
        if fewest == 0:
            break
    if fewest is None:
        raise InputError(
            f"in {max_draws} draws of Dir({alpha}) some class always fell to clients that were full; use a larger alpha"
        )
    _give(counts, proportions * totals[0][:, None], len(classes))
    test_counts = np.array([apportion(share, n) for share, n in zip(proportions, totals[1], strict=True)])
    _give(test_counts, counts, 1)
    return deal(y_train, classes, counts, rng), deal(y_test, classes, test_counts, rng), int(fewest)


def _give(counts: np.ndarray, wanted: np.ndarray, least: int) -> None:
    """Bring every client to `least` samples in all of `counts [classes, clients]`, one by one, in place.

    Of the class of which it is `wanted` that the client has most, from whoever has most of it and more than `least` in
    all; the next class where nobody has.
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
