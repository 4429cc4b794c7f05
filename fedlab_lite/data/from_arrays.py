"""A user's own arrays as data for clients: with the owner of each row, or as a pool that a partition divides."""

import math
from typing import Any

import numpy as np

from fedlab_lite.data.container import TASKS, Federated, Pool
from fedlab_lite.data.partition import apportion
from fedlab_lite.util import InputError, choose


def rows_of_arrays(
    x: Any, y: Any, *, name: str, task: str = "classification", num_classes: int | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return `x [n, ...]` and `y [n, ...]` as NumPy arrays and the number of classes; raise `InputError` if unusable.

    >>> rows_of_arrays([[0.5], [1.5]], [0, 2], name="mine")
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: mine: the labels are 0, 2, and no row has 1; number them 0, 1, ... without \
gaps (numpy.unique(y, return_inverse=True)[1] does), or give num_classes
    """
    choose("task", task, TASKS)
    if y is None:
        raise InputError(f"{name}: x came without y; call federated(x, y, owners=...), or give a data set's name")
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise InputError(
            f"{name}: x has shape {x.shape} and y {y.shape}; both need one row a sample, x `[n, ...]` and y `[n]`"
        )
    if len(x) == 0:
        raise InputError(f"{name}: x and y have no rows")
    for array, what in ((x, "x"), (y, "y")):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0, 0])
            raise InputError(f"{name}: row {row} of {what} holds NaN or infinity; remove or repair it")
    if x.dtype.kind not in "fiub":
        raise InputError(f"{name}: x is {x.dtype}; convert it to uint8 pixels or floats")
    if task == "regression":
        return x, y, num_classes or math.prod(y.shape[1:])
    if y.dtype.kind not in "iu":
        raise InputError(
            f"{name}: the labels are {y.dtype}; number the classes 0, 1, ... (numpy.unique(y, return_inverse=True)[1] "
            "does), or, if they are no labels but numbers to be fitted, give task='regression'"
        )
    if task == "classification" and y.ndim > 1:
        raise InputError(f"{name}: y has shape {y.shape}; a classification needs one label a row, `[n]`")
    classes = np.unique(y)
    if classes[0] < 0 or (num_classes and classes[-1] >= num_classes):
        raise InputError(
            f"{name}: labels run from {classes[0]} to {classes[-1]}; they must lie in 0 ... "
            f"{(num_classes or len(classes)) - 1}; renumber them or give the right num_classes"
        )
    if num_classes is None and task == "classification" and classes[-1] >= len(classes):
        some = ", ".join(map(str, classes[:5])) + ", ..." * (len(classes) > 5)
        missing = int(np.argmax(classes != np.arange(len(classes))))
        raise InputError(
            f"{name}: the labels are {some}, and no row has {missing}; number them 0, 1, ... without gaps "
            "(numpy.unique(y, return_inverse=True)[1] does), or give num_classes"
        )
    return x, y, num_classes or int(classes[-1]) + 1


def check_test_fraction(test_fraction: float) -> None:
    """Raise `InputError` unless `test_fraction` is between 0 and 1, both excluded."""
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction is {test_fraction}; give one between 0 and 1, for example 0.2")


def by_owners(
    x: np.ndarray,
    y: np.ndarray,
    owners: Any,
    *,
    name: str,
    num_classes: int,
    task: str = "classification",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Federated:
    """Make one client per owner, in the order of `numpy.unique(owners)`; rows keep their order.

    Of each client's n rows round(`test_fraction` n), but at least one and not all, become test rows, drawn by
    `numpy.random.default_rng([seed, 5, client])`.
    """
    check_test_fraction(test_fraction)
    owners = np.asarray(owners)
    if owners.shape != (len(x),):
        raise InputError(
            f"{name}: owners has shape {owners.shape}, but there are {len(x)} rows; give one owner a row, `[{len(x)}]`"
        )
    if owners.dtype.kind not in "iubUS":
        raise InputError(f"{name}: owners are {owners.dtype}; name them by integers or by strings (owners.astype(str))")
    names, place = np.unique(owners, return_inverse=True)
    train, test = [], []
    for client, owner in enumerate(names):
        rows = np.flatnonzero(place == client)
        if len(rows) < 2:
            raise InputError(
                f"{name}: owner {owner!s} has one row, which cannot both train and test; leave such owners out, or "
                "join them to others"
            )
        count = min(max(1, round(test_fraction * len(rows))), len(rows) - 1)
        held = np.zeros(len(rows), bool)
        held[np.random.default_rng([seed, 5, client]).choice(len(rows), count, replace=False)] = True
        train.append((x[rows[~held]], y[rows[~held]]))
        test.append((x[rows[held]], y[rows[held]]))
    source = f"own arrays, {len(names)} owners"
    return Federated.stack(train, test, name=name, source=source, num_classes=num_classes, task=task)


def pool_of_arrays(
    x: np.ndarray,
    y: np.ndarray,
    *,
    name: str,
    num_classes: int,
    task: str = "classification",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Pool:
    """Make a pool of the rows, with a random share of each class (of a regression: of all rows) as test rows."""
    check_test_fraction(test_fraction)
    labels = y if task == "classification" else np.zeros(len(y), int)
    classes, counts = np.unique(labels, return_counts=True)
    total = min(max(1, round(test_fraction * len(y))), len(y) - 1)
    rng, held = np.random.default_rng([seed, 5]), np.zeros(len(y), bool)
    for label, count in zip(classes, apportion(counts, total), strict=True):
        held[rng.choice(np.flatnonzero(labels == label), count, replace=False)] = True
    return Pool(x[~held], y[~held], x[held], y[held], name, "own arrays", num_classes, task)
