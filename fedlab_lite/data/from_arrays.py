"""A user's own arrays as a pool: with the owner of each row, or without."""

from typing import Any

import numpy as np

from fedlab_lite.data.partition import apportion
from fedlab_lite.data.pool import TASKS, Pool, number_of_classes, wrong_classes, wrong_owners, wrong_rows
from fedlab_lite.util import InputError, choose


def pool_of_arrays(
    x: Any,
    y: Any,
    owners: Any = None,
    *,
    name: str,
    num_classes: int | None = None,
    task: str = "classification",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Pool:
    """Make a pool of `x [n, ...]` and `y [n, ...]`; `test_rows` says which rows are for testing.

    Without `owners`, the share `test_fraction` of each class (of a regression: of all rows) is for testing.

    >>> pool_of_arrays([[0.5], [1.5]], [0, 2], name="mine")
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: mine: the labels y are 0, 2, and no row has 1; number the classes 0, 1, ... \
(numpy.unique(y, return_inverse=True)[1] does) without gaps, or give num_classes
    """
    choose("task", task, TASKS)
    if y is None:
        raise InputError(f"{name}: x came without y; call federated(x, y, owners=...), or give a data set's name")
    x, y = np.asarray(x), np.asarray(y)
    wrong = wrong_rows(x, y, task, num_classes)
    if not wrong and task == "classification":
        wrong = wrong_classes(y, known=num_classes is not None)
    if not wrong and owners is not None:
        owners = np.asarray(owners)
        wrong = wrong_owners(owners, len(x))
    if wrong:
        raise InputError(f"{name}: {wrong[0]}")
    source = "own arrays"
    if owners is not None:
        source = f"own arrays, {len(np.unique(owners))} owners"
        held = test_rows(owners, test_fraction, seed)
        if lonely := np.setdiff1d(owners[~held], owners[held]).tolist():
            raise InputError(
                f"{name}: owner {lonely[0]} has one row, which cannot both train and test; leave such owners out, or "
                "join them to others"
            )
    else:
        check_test_fraction(test_fraction)
        labels = y if task == "classification" else np.zeros(len(y), int)
        classes, counts = np.unique(labels, return_counts=True)
        total = min(max(1, round(test_fraction * len(y))), len(y) - 1)
        rng, held = np.random.default_rng([seed, 5]), np.zeros(len(y), bool)
        for label, count in zip(classes, apportion(counts, total), strict=True):
            held[rng.choice(np.flatnonzero(labels == label), count, replace=False)] = True
    rows = {"x_train": x[~held], "y_train": y[~held], "x_test": x[held], "y_test": y[held]}
    if owners is not None:
        rows |= {"owner_train": owners[~held], "owner_test": owners[held]}
    return Pool(**rows, name=name, source=source, num_classes=num_classes or number_of_classes(y, task), task=task)


def check_test_fraction(test_fraction: float) -> None:
    """Raise `InputError` unless `test_fraction` is between 0 and 1, both excluded."""
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction is {test_fraction}; give one between 0 and 1, for example 0.2")


def test_rows(groups: np.ndarray, test_fraction: float, seed: int) -> np.ndarray:
    """Draw the test rows, `[n]` bool: a share of each group of rows, at least one, and never all of a group.

    Of the n rows of group k, in the order of `numpy.unique(groups)`, round(`test_fraction` n) are drawn by
    `numpy.random.default_rng([seed, 5, k])`.
    """
    check_test_fraction(test_fraction)
    held = np.zeros(len(groups), bool)
    for k, group in enumerate(np.unique(groups)):
        rows = np.flatnonzero(groups == group)
        count = min(max(1, round(test_fraction * len(rows))), len(rows) - 1)
        held[np.random.default_rng([seed, 5, k]).choice(rows, count, replace=False)] = True
    return held
