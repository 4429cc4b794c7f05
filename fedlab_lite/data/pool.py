"""`Pool`, samples before they are divided among clients: checks, and pools of a user's own arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedlab_lite.data.partition import apportion
from fedlab_lite.util import InputError, choose, sha256_of_arrays
from fedlab_lite.util.fields import Share, checks_arguments

TASKS = ("classification", "next_character")  # what y is: a label, or one id per position
_ARRAYS = ("owner_test", "owner_train", "x_test", "x_train", "y_test", "y_train")
_LAST = 2**31 - 1  # labels are int32
_NUMBERED = "number the classes 0, 1, ... (numpy.unique(y, return_inverse=True)[1] does)"


class Pool(NamedTuple):
    """A data set before partition: x_train `[n, ...]`, y_train `[n]`, and the same for test.

    `task` is one of `TASKS`; for 'next_character' x and y are `[n, length]`, and 0 is padding. `owner_train [n]` and
    `owner_test` say who made each sample, and `label_words` the word for each label, where this was recorded.
    `feature_names` has the columns of a table. `x_range` has the numbers that became 0 and 1 when the rows were read
    (see `ranges`).
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    name: str
    source: str
    num_classes: int
    task: str = "classification"
    owner_train: np.ndarray | None = None
    owner_test: np.ndarray | None = None
    label_words: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    x_range: tuple | None = None

    def digest(self) -> str:
        """The SHA-256 (hex) of the arrays."""
        arrays = {key: getattr(self, key) for key in _ARRAYS}
        return sha256_of_arrays({key: array for key, array in arrays.items() if array is not None})

    def describe(self) -> str:
        """Describe the content in one line: shape, classes, rows, owners, fingerprint."""
        shape = "x".join(map(str, self.x_train.shape[1:]))
        owners = "" if self.owner_train is None else f", {len(np.unique(self.owner_train)):,} owners"
        rows = f"{len(self.x_train):,} + {len(self.x_test):,} rows{owners}"
        return f"{shape} {self.x_train.dtype}, {self.num_classes} classes, {rows}, sha256 {self.digest()[:12]}"


def wrong_rows(x: np.ndarray, y: np.ndarray, num_classes: int | None = None, part: str = "") -> list[str]:
    """List what is wrong with the rows `x [n, ...]` and `y [n, ...]`; `part` ('_train') is added to their names.

    >>> wrong_rows(np.zeros((2, 3)), np.array([0, 7]), 5, "_test")
    ['y_test runs from 0 to 7, but must lie in 0 ... 4; renumber the classes, or set the right num_classes']
    """
    x_name, y_name = f"x{part}", f"y{part}"
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y) or 0 in x.shape[1:]:
        return [f"{x_name} has shape {x.shape} and {y_name} {y.shape}; both need one row per sample, `[n, ...]`"]
    if len(x) == 0:
        return [f"{x_name} and {y_name} have no rows"]
    wrong = []
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0, 0])
        wrong.append(f"row {row} of {x_name} holds NaN or infinity; remove or repair it")
    if x.dtype.kind not in "fiub" or x.dtype.itemsize > 8:
        wrong.append(f"{x_name} is {x.dtype}; convert it to uint8 pixels or float32")
    elif x.dtype.itemsize == 8 and not wrong:
        limits = np.finfo(np.float32) if x.dtype.kind == "f" else np.iinfo(np.int32)
        if beyond := [value for value in (x.min(), x.max()) if not limits.min <= value <= limits.max]:
            wrong.append(f"{x_name} holds {beyond[0]:g}, beyond {limits.dtype}, in which it is used; rescale it")
    if y.dtype.kind not in "iu":
        wrong.append(f"{y_name} is {y.dtype}, but labels are whole numbers; {_NUMBERED}")
    elif y.min() < 0 or y.max() > _LAST or (num_classes and y.max() >= num_classes):
        last = num_classes - 1 if num_classes else f"the number of classes - 1 (at most {_LAST})"
        found = f"{y_name} runs from {y.min()} to {y.max()}"
        wrong.append(f"{found}, but must lie in 0 ... {last}; renumber the classes, or set the right num_classes")
    return wrong


def wrong_classes(y: np.ndarray, name: str = "y", known: bool = False) -> list[str]:
    """List what is wrong with the labels of a classification, `known` to have a number of classes or not.

    >>> wrong_classes(np.array([0, 2]))[0][:44]
    'the labels y are 0, 2, and no row has 1; num'
    """
    if y.ndim > 1:
        return [f"{name} has shape {y.shape}; a classification needs one label per row, `[n]`"]
    classes = np.unique(y)
    if known or classes[-1] == len(classes) - 1:
        return []
    some = ", ".join(map(str, classes[:5])) + ", ..." * (len(classes) > 5)
    missing = int(np.argmax(classes != np.arange(len(classes))))
    return [f"the labels {name} are {some}, and no row has {missing}; {_NUMBERED} without gaps, or set num_classes"]


def wrong_ids(x: np.ndarray, y: np.ndarray, num_classes: int | None = None) -> list[str]:
    """List what is wrong with the ids of a text, `x` and `y [n, length]`.

    >>> wrong_ids(np.array([[0, 9]]), np.array([[1, 1]]))
    ['x has the id 9, but y at most 1; number the ids of x and y alike, 0 to num_classes - 1']
    """
    last = int(y.max()) if num_classes is None else num_classes - 1
    if x.dtype.kind not in "iu" or x.min() < 0:
        return ["x of a text holds ids: whole numbers from 0"]
    if num_classes is None and last > max(1000, 100 * len(np.unique(y))):
        some = f"the ids run to {last}, but only {len(np.unique(y))} of them occur"
        return [f"{some}, and a network has an output for each; number them 0, 1, ... without gaps, or set num_classes"]
    if x.max() > last:
        alike = "number the ids of x and y alike, 0 to num_classes - 1"
        return [f"x has the id {x.max()}, but y at most {last}; {alike}"]
    return []


def wrong_words(words: Sequence[str], num_classes: int, name: str = "label_words") -> list[str]:
    """List what is wrong with the words for the labels 0 ... num_classes - 1.

    >>> wrong_words(["cat", "cat"], 3)
    ['label_words has 2 words for 3 classes; give one word per label, in order', 'label_words has one word twice: cat']
    """
    twice = sorted({word for word in words if list(words).count(word) > 1})
    wrong = [f"{name} has one word twice: {', '.join(twice)}"] if twice else []
    if len(words) != num_classes:
        return [f"{name} has {len(words)} words for {num_classes} classes; give one word per label, in order", *wrong]
    return wrong


def wrong_owners(owners: np.ndarray, rows: int, name: str = "owners") -> list[str]:
    """List what is wrong with the owners of `rows` rows."""
    wrong = []
    if owners.dtype.kind not in "iubUS":
        wrong.append(f"{name} is {owners.dtype}; use integers or strings for owners (.astype(str))")
    if owners.shape != (rows,):
        wrong.append(f"{name} has shape {owners.shape}, but there are {rows} rows; pass one owner per row, `[{rows}]`")
    return wrong


@checks_arguments
def pool_of_arrays(
    x: Any,
    y: Any,
    owners: Any = None,
    *,
    name: str,
    num_classes: int | None = None,
    task: str = "classification",
    test_fraction: Share = 0.2,
    label_words: Sequence[str] = (),
    seed: int = 0,
) -> Pool:
    """Make a pool of `x [n, ...]` and `y [n, ...]`; `held_out` says which rows are for testing.

    Without `owners`, the share `test_fraction` of each class (of a text: of all rows) is for testing.

    >>> pool_of_arrays([[0.5], [1.5]], [0, 2], name="mine")
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: mine: the labels y are 0, 2, and no row has 1; number the classes 0, 1, ... \
(numpy.unique(y, return_inverse=True)[1] does) without gaps, or set num_classes
    """
    choose("task", task, TASKS)
    if y is None:
        raise InputError(f"{name}: y is missing; call federated(x, y, owners=...), or pass a data set's name")
    x, y = np.asarray(x), np.asarray(y)
    wrong = wrong_rows(x, y, num_classes)
    if not wrong:
        known = num_classes is not None
        wrong = wrong_classes(y, known=known) if task == "classification" else wrong_ids(x, y, num_classes)
    if not wrong and label_words:
        wrong = wrong_words(label_words, num_classes or int(y.max()) + 1)
    if not wrong and owners is not None:
        owners = np.asarray(owners)
        wrong = wrong_owners(owners, len(x))
    if wrong:
        raise InputError(f"{name}: {wrong[0]}")
    if num_classes is None:
        num_classes = int(y.max()) + 1
    x = x.astype(np.int32) if x.dtype == np.uint16 else x  # numbers, and no pixels of 16 bits
    about = {"name": name, "source": "own arrays", "num_classes": num_classes, "task": task}
    about |= {"label_words": tuple(map(str, label_words))}
    if owners is not None:
        held = held_out(owners, test_fraction, seed)
        if lonely := np.setdiff1d(owners, owners[held]).tolist():
            raise InputError(
                f"{name}: owner {lonely[0]} has one row, which cannot train and test; leave out or merge such owners"
            )
        about |= {"source": f"own arrays, {len(np.unique(owners))} owners"}
        about |= {"owner_train": owners[~held], "owner_test": owners[held]}
    else:
        labels = y if task == "classification" else np.zeros(len(y), int)
        classes, counts = np.unique(labels, return_counts=True)
        total = min(max(1, round(test_fraction * len(y))), len(y) - 1)
        rng, held = np.random.default_rng([seed, 5]), np.zeros(len(y), bool)
        for label, count in zip(classes, apportion(counts, total), strict=True):
            held[rng.choice(np.flatnonzero(labels == label), count, replace=False)] = True
    return Pool(x[~held], y[~held], x[held], y[held], **about)


def held_out(groups: np.ndarray, test_fraction: float, seed: int) -> np.ndarray:
    """Draw the test rows, `[n]` bool: a share of each group of rows, at least one, and never all of a group.

    Of the n rows of group k, in the order of `numpy.unique(groups)`, round(`test_fraction` n) are drawn by
    `numpy.random.default_rng([seed, 5, k])`.
    """
    held = np.zeros(len(groups), bool)
    for k, group in enumerate(np.unique(groups)):
        rows = np.flatnonzero(groups == group)
        count = min(max(1, round(test_fraction * len(rows))), len(rows) - 1)
        held[np.random.default_rng([seed, 5, k]).choice(rows, count, replace=False)] = True
    return held
