"""`federated(...)`: load a data set by name or take arrays, divide the rows among clients and stack the result."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from fedlab_lite.data import motion, ranges, roles, synthetic, which
from fedlab_lite.data.container import Federated
from fedlab_lite.data.partition import apportion, by_class_cycle, by_label, dirichlet, iid, natural
from fedlab_lite.data.partition_deprl import dirichlet_capped
from fedlab_lite.data.pool import Pool, pool_of_arrays
from fedlab_lite.util import InputError, choose
from fedlab_lite.util.fields import Count, Positive, Range, Seed, Share, checks_arguments
from fedlab_lite.util.text import plain

PARTITIONS = ("iid", "by_label", "by_class_cycle", "dirichlet", "dirichlet_capped", "natural")


@checks_arguments
def federated(
    dataset: str | Any,
    y: Any = None,
    *,
    owners: Any = None,
    partition: str | None = None,
    num_clients: Count | None = None,
    classes_per_client: Count = 2,
    alpha: Positive = 0.5,
    train_size: Count | None = None,
    test_size: Count | None = None,
    common_test: bool = False,
    shared_size: Annotated[int, Range(0)] = 0,
    shared_alpha: Annotated[float, Range(0)] = 0.0,
    test_fraction: Share = 0.2,
    num_classes: Count | None = None,
    label_words: tuple[str, ...] = (),
    task: str = "classification",
    name: str = "arrays",
    seed: Seed = 0,
) -> Federated:
    """Load a data set by name, or take arrays; keep some of the rows, and divide them among clients.

    The kept rows have the label mix of all rows. With partition 'natural' they have the clients' shares of all rows
    instead, and every client keeps at least one.

    Args:
      dataset: the name of an embedded data set, of a published one or of your own file (see `which`), or an array of
        rows, `x [n, ...]`.
      y: with an array: the labels, `[n]`.
      owners: with an array: whose each row is, `[n]`. Each owner is a client, in the order of `numpy.unique(owners)`.
        Then `partition` and `num_clients` are left out.
      partition: one of `PARTITIONS`. Sequences (`roles`, `shakespeare`) are divided by role, 'natural'.
        'by_class_cycle' pools training and test rows. It gives all clients equally many, 70 % for training (FedReCo).
        Its sizes are multiples of `num_clients`; where one is given, the other follows.
        'dirichlet_capped' (DePRL) moves rows to clients that have too few; `source` says how many.
      classes_per_client: for 'by_label' and 'by_class_cycle'.
      alpha: for 'dirichlet' and 'dirichlet_capped'.
      train_size, test_size: rows to keep, over all clients; None: all. `digits`, `textures` and `motion` have any size:
        by default 500 training rows per client, and a fifth as many test rows.
      common_test: test every client on all test rows; otherwise the test rows are divided as well.
      shared_size: training rows that all clients share, without labels (FedF-ADMM, Sec. VI-E). They are set aside
        before the others are divided.
      shared_alpha: 0: the shared rows have the label mix of all rows; otherwise a mix drawn from Dir(shared_alpha).
      test_fraction: with an array: the share of test rows, of each owner's rows or of each class.
      num_classes: with an array: the number of classes; None: the labels are 0, 1, ... without gaps.
      label_words: with an array: the word for each label, in order; a file has its own.
      task, name: with an array: one of `TASKS`, and what to call the data.
      seed: draws the embedded rows, the rows to keep, the test rows of an array, and the partition.

    Raises:
      InputError: unknown names and impossible numbers. With arrays also different lengths, NaN, labels that are not
        whole numbers from 0, and an owner with one row.
      MissingDataError, CorruptFileError: real data that are not here, or are damaged.

    Example:
      >>> data = federated("textures", partition="by_label", num_clients=10, train_size=1000)
      >>> data.x.shape, data.test_x.shape, data.summary()["classes_per_client"]
      ((10, 100, 32, 32, 3), (10, 20, 32, 32, 3), 2.0)
      >>> x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 3
      >>> own = federated(x, y, owners=["Ada"] * 10 + ["Bob"] * 20)
      >>> own.size.tolist(), own.test_size.tolist(), own.num_classes
      ([8, 16], [2, 4], 3)
      >>> federated(x, y, partition="iid", num_clients=4).size.tolist()
      [6, 6, 6, 6]
    """
    by_name = isinstance(dataset, str)
    if by_name:
        if y is not None or owners is not None or label_words:
            words = "pass y, owners and label_words only with an array x"
            raise InputError(f"data set {dataset!r} has its own labels; {words}")
        name = dataset
    else:
        about = {"name": name, "num_classes": num_classes, "task": task, "test_fraction": test_fraction, "seed": seed}
        pool = pool_of_arrays(dataset, y, owners, **about, label_words=label_words)
        if owners is not None:
            if partition is not None or num_clients is not None:
                raise InputError("owners decide which client has which row; leave partition and num_clients out")
            partition, num_clients = "natural", len(np.unique(pool.owner_train))
    if partition is None or num_clients is None:
        alone = "" if by_name else ", or pass owners, one per row"
        raise InputError(f"set partition (one of {', '.join(PARTITIONS)}) and num_clients{alone}")
    choose("partition", partition, PARTITIONS)
    for kind, size in (("train_size", train_size), ("test_size", test_size)):
        if size is not None and size < num_clients:
            raise InputError(f"{kind} is {size}, which leaves some of {num_clients} clients without rows; raise it")
    if partition in ("by_class_cycle", "natural") and (common_test or shared_size):
        raise InputError(f"partition {partition!r} allows no common_test and no shared_size; leave them out")
    if partition == "by_class_cycle":
        train_size, test_size = _seven_to_three(num_clients, train_size, test_size)
    if by_name:
        users = num_clients if partition == "natural" else motion.NUM_USERS
        pool = _load(dataset, num_clients, users, train_size and train_size + shared_size, test_size, seed)
    parts = pool.x_train, pool.x_test
    if pool.source.startswith("own ") and pool.task == "classification" and ranges.far(parts):
        warnings.warn(plain(f"{name}: {'; '.join(ranges.judged(parts, pool.feature_names))}"), stacklevel=3)
    shared_x, client_names = None, []
    if partition == "natural":
        train, test, client_names = _by_owner(pool, num_clients, train_size, test_size, seed=seed)
    elif pool.task == "next_character":
        raise InputError(f"{name} are sequences, split by role: partition must be 'natural', not {partition!r}")
    elif partition == "by_class_cycle":
        y = np.concatenate([pool.y_train, pool.y_test])
        rows = (train_size // num_clients, test_size // num_clients) if train_size and test_size else None
        train, test = by_class_cycle(y, num_clients, classes_per_client, seed=seed, rows=rows)
        x = np.concatenate([pool.x_train, pool.x_test])
        pool = pool._replace(x_train=x, y_train=y, x_test=x, y_test=y)
    else:
        held_out = _shared(pool.y_train, shared_size, shared_alpha, seed)
        shared_x = pool.x_train[held_out]
        rest = np.setdiff1d(np.arange(len(pool.y_train)), held_out)
        _check_sizes(name, (train_size, test_size), (len(rest), len(pool.y_test)))
        rngs = [np.random.default_rng([seed, part]) for part in range(2)]
        kept = rest[_stratified(pool.y_train[rest], train_size, rngs[0])]
        tests = _stratified(pool.y_test, test_size, rngs[1])
        # With a common test set, test samples are not divided; the partition gets training samples in their place.
        labels = pool.y_train[kept], pool.y_train[kept] if common_test else pool.y_test[tests]
        if partition == "iid":
            parts = iid(*labels, num_clients, seed=seed)
        elif partition == "by_label":
            parts = by_label(*labels, num_clients, classes_per_client, seed=seed)
        elif partition == "dirichlet":
            parts = dirichlet(*labels, num_clients, alpha, seed=seed)
        else:
            *parts, given = dirichlet_capped(*labels, num_clients, alpha, seed=seed)
            if given:
                pool = pool._replace(source=f"{pool.source}, rows given to clients short of them: {given}")
        train, test = [kept[i] for i in parts[0]], [tests] if common_test else [tests[i] for i in parts[1]]
    parts = (pool.x_train, pool.y_train, train), (pool.x_test, pool.y_test, test)
    rows = [[(x[i], y[i]) for i in part] for x, y, part in parts]
    about = {"name": name, "source": pool.source, "num_classes": pool.num_classes, "task": pool.task}
    data = Federated.stack(*rows, **about, shared_x=shared_x, common_test=common_test)
    names = {"label_words": pool.label_words, "client_names": tuple(client_names), "x_range": pool.x_range}
    return replace(data, **names)


def _seven_to_three(num_clients: int, train_size: int | None, test_size: int | None) -> tuple[int | None, int | None]:
    """Both sizes, or None for both: equally many rows per client, 70 % for training unless both sizes are given."""
    for name, size in (("train_size", train_size), ("test_size", test_size)):
        if size is not None and size % num_clients:
            raise InputError(
                f"{name} is {size}, but 'by_class_cycle' gives {num_clients} clients equally many; use a multiple"
            )
    if train_size and not test_size:
        test_size = max(1, round(train_size / num_clients * 3 / 7)) * num_clients
    if test_size and not train_size:
        train_size = max(1, round(test_size / num_clients * 7 / 3)) * num_clients
    return train_size, test_size


def _shared(y: np.ndarray, size: int, alpha: float, seed: int) -> np.ndarray:
    """Draw sorted indices of `size` samples, with the label mix of `y`, or with one drawn from Dir(alpha)."""
    if size == 0:
        return np.zeros(0, int)
    if size > len(y):
        raise InputError(f"shared_size is {size}, but there are {len(y)} training rows; use fewer")
    rng = np.random.default_rng([seed, 2])
    if not alpha:
        return _stratified(y, size, rng)
    if not 0 < alpha < np.inf:
        raise InputError(f"shared_alpha is {alpha}; the Dirichlet distribution needs a positive number, or 0 for none")
    classes, available = np.unique(y, return_counts=True)
    wanted = apportion(rng.dirichlet(np.full(len(classes), alpha)), size)
    if (wanted > available).any():
        label = classes[np.argmax(wanted - available)]
        raise InputError(
            f"shared_size {size} with shared_alpha {alpha} asks for more samples of class {label} than there are; "
            "use a smaller shared_size, or a larger shared_alpha"
        )
    return _drawn(y, classes, wanted, rng)


def _load(dataset: str, num_clients: int, users: int, train_size: int | None, test_size: int | None, seed: int) -> Pool:
    kind, name = which.kind_of(dataset), which.split(dataset)[1]
    if kind != "embedded":
        return which.load(dataset)
    if name == "glyphs":
        return synthetic.glyphs(num_clients, seed=seed)
    if name == "roles":
        return roles.roles(num_clients, seed=seed)
    train_size = train_size or 500 * num_clients
    test_size = test_size or max(num_clients, train_size // 5)
    if name == "digits":
        return synthetic.digits(train_size, test_size, seed=seed)
    if name == "motion":
        return motion.motion(train_size, test_size, num_users=users, seed=seed)
    return synthetic.textures(100 if name == "textures100" else 10, train_size, test_size, seed=seed)


def _stratified(y: np.ndarray, size: int | None, rng: np.random.Generator) -> np.ndarray:
    """Draw sorted indices of `size` samples with the label mix of `y`."""
    if size is None:
        return np.arange(len(y))
    classes, counts = np.unique(y, return_counts=True)
    return _drawn(y, classes, apportion(counts, size), rng)


def _drawn(y: np.ndarray, classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw sorted indices of `counts` random samples per class."""
    pairs = zip(classes, counts, strict=True)
    return np.sort(np.concatenate([rng.choice(np.flatnonzero(y == k), n, replace=False) for k, n in pairs]))


def _by_owner(pool: Pool, num_clients: int, *sizes: int | None, seed: int) -> tuple[list, list, list[str]]:
    """Draw owners, and of their samples as many as `sizes` say: one per client, the others by each client's number.

    Returns: the rows of each client for training and for test, and the clients' names.
    """
    if pool.owner_train is None or pool.owner_test is None:
        raise InputError(
            f"{pool.source} does not record the owners of its samples, so partition 'natural' is not possible. Use "
            "partition 'dirichlet', 'by_label' or 'iid' (in a notebook `-p partition iid`), or data with owners, such "
            "as an .npz with owner_train and owner_test"
        )
    parts = natural(pool.owner_train, pool.owner_test, num_clients, seed=seed)
    _check_sizes(f"{pool.name}, {num_clients} clients", sizes, [sum(map(len, part)) for part in parts])
    for k, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        if size is not None:
            rng, lengths = np.random.default_rng([seed, k]), np.array([len(rows) for rows in part])
            counts = lengths if size == lengths.sum() else 1 + apportion(lengths - 1, size - num_clients)
            part[:] = [np.sort(rng.choice(rows, n, replace=False)) for rows, n in zip(part, counts, strict=True)]
    return *parts, pool.owner_train[[rows[0] for rows in parts[0]]].astype(str).tolist()


def _check_sizes(what: str, sizes: Sequence[int | None], available: Sequence[int]) -> None:
    """Raise `InputError`, one for both sizes, where train_size or test_size asks for more rows than there are."""
    wanted = [there if size is None else size for size, there in zip(sizes, available, strict=True)]
    if wanted[0] > available[0] or wanted[1] > available[1]:
        train, test = map(min, wanted, available)
        raise InputError(
            f"{what}: train_size is {sizes[0]} and test_size {sizes[1]}, but there are {available[0]} training and "
            f"{available[1]} test rows; write train_size={train}, test_size={test}, or less "
            f"(in a notebook `-p train_size {train} -p test_size {test}`)"
        )
