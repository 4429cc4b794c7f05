"""Partitions of a pooled data set among clients; for DePRL's see `partition_deprl`.

Each function returns `(train, test)`: two lists with one sorted array of sample indices per client. `iid`, `by_label`
and `dirichlet` use every sample exactly once. Each is deterministic in `seed`, and raises `InputError` for a partition
that is impossible.
"""

import numpy as np

from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Count, Positive, Seed, checks_arguments

Indices = list[np.ndarray]
Parts = tuple[Indices, Indices]  # of training and of test rows, one array per client


def check_classes(num_clients: int, classes_per_client: int, num_classes: int, held: int, least: int) -> None:
    """Raise `InputError` unless clients can have so many different classes, and all classes are `held`.

    `least` clients are needed for that.
    """
    if classes_per_client > num_classes:
        raise InputError(
            f"classes_per_client is {classes_per_client} of {num_classes} classes; choose 1 to {num_classes}"
        )
    if held < num_classes:
        raise InputError(
            f"{num_clients} clients with {classes_per_client} classes each hold {held} of {num_classes} classes and "
            f"the others would be lost; use more classes per client, or at least {least} clients"
        )


def apportion(weights: np.ndarray, total: int) -> np.ndarray:
    """Integers in proportion to `weights` that sum to exactly `total`, by the method of largest remainders.

    >>> apportion(np.array([1.0, 1.0, 2.0]), 6).tolist()
    [2, 1, 3]
    """
    exact = np.asarray(weights, float) / np.sum(weights) * total
    counts = np.floor(exact).astype(int)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts


@checks_arguments
def iid(y_train: np.ndarray, y_test: np.ndarray, num_clients: Count, *, seed: Seed) -> Parts:
    """Split at random into equal parts, whose sizes differ by at most one.

    >>> train, test = iid(np.zeros(7), np.zeros(3), 3, seed=0)
    >>> [len(i) for i in train], [len(i) for i in test]
    ([3, 2, 2], [1, 1, 1])
    """
    for y, kind in ((y_train, "training"), (y_test, "test")):
        if len(y) < num_clients:
            raise InputError(f"{num_clients} clients cannot share {len(y)} {kind} samples; use fewer clients")
    rng = np.random.default_rng(seed)
    orders = rng.permutation(len(y_train)), rng.permutation(len(y_test))
    return tuple([np.sort(part) for part in np.array_split(order, num_clients)] for order in orders)


@checks_arguments
def by_label(
    y_train: np.ndarray, y_test: np.ndarray, num_clients: Count, classes_per_client: Count, *, seed: Seed
) -> Parts:
    """Give each client exactly `classes_per_client` distinct classes (FeDEQ, Sec. V-A1; there "p classes").

    Each of the C classes has num_clients * p / C holders. Where this is no integer, random classes have one holder
    more. The holders of a class share its training and its test samples equally, so a client's label mix is the same in
    both. CIFAR-10 with 100 clients and p = 2 gives each client 500 training and 100 test samples.

    Fewer places (num_clients * p) than classes are an error, since whole classes would be lost.

    >>> y = np.repeat(np.arange(3), 4)
    >>> train, test = by_label(y, y, 6, 2, seed=0)
    >>> [len(np.unique(y[i])) for i in train], np.sort(np.concatenate(train)).tolist() == list(range(12))
    ([2, 2, 2, 2, 2, 2], True)
    """
    classes, places = np.union1d(y_train, y_test), num_clients * classes_per_client
    least = -(-len(classes) // max(1, classes_per_client))
    check_classes(num_clients, classes_per_client, len(classes), places, least)
    rng = np.random.default_rng(seed)
    holders = _deal(len(classes), num_clients, classes_per_client, rng)
    train: list[list] = [[] for _ in range(num_clients)]
    test: list[list] = [[] for _ in range(num_clients)]
    for label, clients in zip(classes, holders, strict=True):
        for y, parts, kind in ((y_train, train, "training"), (y_test, test, "test")):
            members = rng.permutation(np.flatnonzero(y == label))
            if len(members) < len(clients):
                raise InputError(
                    f"class {label} has {len(members)} {kind} samples for {len(clients)} clients with that class; "
                    "use fewer clients, fewer classes per client, or more samples"
                )
            for client, share in zip(clients, np.array_split(members, len(clients)), strict=True):
                parts[client].append(share)
    return tuple([np.sort(np.concatenate(shares)) for shares in parts] for parts in (train, test))


def _deal(num_classes: int, num_clients: int, classes_per_client: int, rng: np.random.Generator) -> Indices:
    """Draw the holders of each class, in random order.

    Each client takes the classes with the most places left, with ties broken at random. The numbers of places left then
    never differ by more than one. So none exceeds the number of remaining clients, and all get distinct classes.
    """
    left = np.full(num_classes, num_clients * classes_per_client // num_classes)
    left[rng.permutation(num_classes)[: num_clients * classes_per_client % num_classes]] += 1
    holders: list[list[int]] = [[] for _ in range(num_classes)]
    for client in rng.permutation(num_clients):
        for label in np.lexsort((rng.random(num_classes), -left))[:classes_per_client]:
            left[label] -= 1
            holders[label].append(int(client))
    return [rng.permutation(clients) for clients in holders]


@checks_arguments
def by_class_cycle(
    y: np.ndarray, num_clients: Count, classes_per_client: Count, *, seed: Seed, rows: tuple[int, int] | None = None
) -> Parts:
    """FedReCo's partition: client c holds the classes (c + j) mod C, j < `classes_per_client`; all have equal size.

    Published training and test rows are pooled in `y [n]`. A client has equally many rows of each of its classes, to
    within one; its first classes have one more. `rows` gives the numbers of training and test rows per client, drawn
    from the client's rows at random. None: 70 % and 30 % of the largest number that all clients can have. Where C
    divides `num_clients` and classes are equally large, every row is used. Fashion-MNIST gives 50 clients with 4
    classes 980 and 420 rows each; CIFAR-10 with 2 classes 840 and 360. (The reference code has 979 and 421.)
    Otherwise the smallest class limits all and rows are left out. The reference code then moves rows between clients
    until none is left out.

    >>> train, test = by_class_cycle(np.repeat(np.arange(4), 10), 4, 2, seed=0)
    >>> [len(i) for i in (*train, *test)], np.unique(np.repeat(np.arange(4), 10)[train[3]]).tolist()
    ([7, 7, 7, 7, 3, 3, 3, 3], [0, 3])
    """
    classes, available = np.unique(y, return_counts=True)
    held, least = min(num_clients, len(classes)) + classes_per_client - 1, len(classes) - classes_per_client + 1
    check_classes(num_clients, classes_per_client, len(classes), held, least)
    place = (np.arange(len(classes)) - np.arange(num_clients)[:, None]) % len(classes)  # j, [clients, classes]
    holds = place < classes_per_client

    def wanted(total: int) -> np.ndarray:
        """The number of rows per client and class, `[clients, classes]`, if each client has `total` rows."""
        return np.where(holds, total // classes_per_client + (place < total % classes_per_client), 0)

    most = classes_per_client * int((available // holds.sum(0)).min()) + classes_per_client - 1
    while (wanted(most).sum(0) > available).any():
        most -= 1
    train_rows, test_rows = rows or (most * 7 // 10, most - most * 7 // 10)
    total = train_rows + test_rows
    if min(train_rows, test_rows) < 1 or total < classes_per_client:
        raise InputError(
            f"{train_rows} training and {test_rows} test rows per client are too few: it needs one of each, and one of "
            f"each of its {classes_per_client} classes; use fewer clients or more samples"
        )
    if total > most:
        raise InputError(
            f"{num_clients} clients with {classes_per_client} of {len(classes)} classes can have at most {most} "
            f"samples each, not {train_rows} for training and {test_rows} for testing; use fewer samples or clients"
        )
    rng = np.random.default_rng(seed)
    ends = np.cumsum(wanted(total), axis=0)
    shares = [
        np.split(rng.permutation(np.flatnonzero(y == label))[: ends[-1, k]], ends[:-1, k])
        for k, label in enumerate(classes)
    ]
    mixed = [rng.permutation(np.concatenate(parts)) for parts in zip(*shares, strict=True)]
    return [np.sort(part[:train_rows]) for part in mixed], [np.sort(part[train_rows:]) for part in mixed]


@checks_arguments
def dirichlet(
    y_train: np.ndarray,
    y_test: np.ndarray,
    num_clients: Count,
    alpha: Positive,
    *,
    seed: Seed,
    min_size: int = 10,
    max_draws: int = 100,
) -> Parts:
    """Divide each class in proportions drawn from Dir(alpha), the same in train and test (Hsu et al. 2019).

    A small `alpha` gives few classes per client, a large one is nearly iid. Proportions are drawn again until each
    client has at least `min_size` training samples and one test sample, at most `max_draws` times.
    """
    rng = np.random.default_rng(seed)
    classes, (train_counts, test_counts) = label_counts(y_train, y_test)
    for _ in range(max_draws):
        shares = rng.dirichlet(np.full(num_clients, alpha), len(classes))
        counts = [
            np.array([apportion(share, n) for share, n in zip(shares, totals, strict=True)])
            for totals in (train_counts, test_counts)
        ]
        if counts[0].sum(0).min() >= min_size and counts[1].sum(0).min() >= 1:
            return tuple(deal(y, classes, c, rng) for y, c in zip((y_train, y_test), counts, strict=True))
    raise InputError(
        f"in {max_draws} draws of Dir({alpha}) some client had fewer than {min_size} training samples or no test "
        f"sample ({len(y_train)} and {len(y_test)} samples, {num_clients} clients); use a larger alpha, fewer clients, "
        "more samples, or another partition, such as 'iid'"
    )


def label_counts(y_train: np.ndarray, y_test: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The classes and their numbers of training and test samples."""
    classes = np.union1d(y_train, y_test)
    return classes, [np.array([np.sum(y == label) for label in classes]) for y in (y_train, y_test)]


def deal(y: np.ndarray, classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Indices:
    """Draw random samples for each client, as many of each class as `counts [classes, clients]` says."""
    parts = [
        np.split(rng.permutation(np.flatnonzero(y == label)), np.cumsum(row)[:-1])
        for label, row in zip(classes, counts, strict=True)
    ]
    return [np.sort(np.concatenate(shares)) for shares in zip(*parts, strict=True)]


@checks_arguments
def natural(owner_train: np.ndarray, owner_test: np.ndarray, num_clients: Count, *, seed: Seed) -> Parts:
    """Draw `num_clients` recorded writers or roles that have training and test samples; each is one client, in order.

    >>> natural(np.array([7, 8, 7]), np.array([8, 7, 7]), 2, seed=0)[0]
    [array([0, 2]), array([1])]
    """
    owners = np.intersect1d(owner_train, owner_test)
    if num_clients > len(owners):
        raise InputError(
            f"num_clients is {num_clients}, but only {len(owners)} writers or roles can train and test; use fewer"
        )
    chosen = np.sort(np.random.default_rng(seed).choice(owners, num_clients, replace=False))
    return _rows_of(owner_train, chosen), _rows_of(owner_test, chosen)


def _rows_of(owner: np.ndarray, chosen: np.ndarray) -> Indices:
    order = np.argsort(owner, kind="stable")
    left, right = (np.searchsorted(owner[order], chosen, side) for side in ("left", "right"))
    return [order[a:b] for a, b in zip(left, right, strict=True)]
