"""`Pool`, samples before they are divided among clients, and the checks of rows, labels and owners."""

import math
from typing import NamedTuple

import numpy as np

from fedlab_lite.util import sha256_of_arrays

TASKS = ("classification", "next_character", "regression")  # what y is: a label, one id per position, numbers
_ARRAYS = ("owner_test", "owner_train", "x_test", "x_train", "y_test", "y_train")
_NUMBERED = "number the classes 0, 1, ... (numpy.unique(y, return_inverse=True)[1] does)"


class Pool(NamedTuple):
    """A data set before partition: x_train `[n, ...]`, y_train `[n]`, and the same for test.

    `task` is one of `TASKS`; for 'next_character' x and y are `[n, length]`, and 0 is padding. `owner_train [n]` and
    `owner_test` say who made each sample, where this was recorded.
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

    def digest(self) -> str:
        """The SHA-256 (hex) of the arrays."""
        arrays = {key: getattr(self, key) for key in _ARRAYS}
        return sha256_of_arrays({key: array for key, array in arrays.items() if array is not None})

    def describe(self) -> str:
        """Describe the content in one line: shape, classes, rows, owners, fingerprint."""
        kind = "ids" if self.task == "next_character" else "classes"
        shape = "x".join(map(str, self.x_train.shape[1:]))
        owners = "" if self.owner_train is None else f", {len(np.unique(self.owner_train)):,} owners"
        rows = f"{len(self.x_train):,} + {len(self.x_test):,} rows{owners}"
        return f"{shape} {self.x_train.dtype}, {self.num_classes} {kind}, {rows}, sha256 {self.digest()[:12]}"


def wrong_rows(x: np.ndarray, y: np.ndarray, task: str, num_classes: int | None = None, part: str = "") -> list[str]:
    """List what is wrong with the rows `x [n, ...]` and `y [n, ...]`; `part` ('_train') is added to their names.

    >>> wrong_rows(np.zeros((2, 3)), np.array([0, 7]), "classification", 5, "_test")
    ['y_test runs from 0 to 7, but must lie in 0 ... 4; renumber it, or give the right num_classes']
    """
    x_name, y_name = f"x{part}", f"y{part}"
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y) or 0 in x.shape[1:]:
        form = "both need one row a sample, x `[n, ...]` and y `[n]`"
        return [f"{x_name} has shape {x.shape} and {y_name} {y.shape}; {form}"]
    if len(x) == 0:
        return [f"{x_name} and {y_name} have no rows"]
    wrong = []
    for name, array in ((x_name, x), (y_name, y)):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0, 0])
            wrong.append(f"row {row} of {name} holds NaN or infinity; remove or repair it")
    if x.dtype.kind not in "fiub":
        wrong.append(f"{x_name} is {x.dtype}; convert it to uint8 pixels or floats")
    if task != "regression":
        return wrong + wrong_ids(y, y_name, num_classes)
    return wrong + [f"{y_name} is {y.dtype}; convert it to floats"] * (y.dtype.kind not in "fiu")


def wrong_ids(ids: np.ndarray, name: str, num_classes: int | None = None) -> list[str]:
    """List what is wrong with labels, or with the ids of a text."""
    if ids.dtype.kind not in "iu":
        return [f"{name} is {ids.dtype}; {_NUMBERED}, or, for numbers to be fitted, give task='regression'"]
    if ids.min() < 0 or (num_classes and ids.max() >= num_classes):
        last = num_classes - 1 if num_classes else "the number of classes - 1"
        found = f"{name} runs from {ids.min()} to {ids.max()}"
        return [f"{found}, but must lie in 0 ... {last}; renumber it, or give the right num_classes"]
    return []


def wrong_classes(y: np.ndarray, name: str = "y", known: bool = False) -> list[str]:
    """List what is wrong with the labels of a classification, `known` to have a number of classes or not.

    >>> wrong_classes(np.array([0, 2]))[0][:44]
    'the labels y are 0, 2, and no row has 1; num'
    """
    if y.ndim > 1:
        return [f"{name} has shape {y.shape}; a classification needs one label a row, `[n]`"]
    classes = np.unique(y)
    if known or classes[-1] == len(classes) - 1:
        return []
    some = ", ".join(map(str, classes[:5])) + ", ..." * (len(classes) > 5)
    missing = int(np.argmax(classes != np.arange(len(classes))))
    return [f"the labels {name} are {some}, and no row has {missing}; {_NUMBERED} without gaps, or give num_classes"]


def wrong_owners(owners: np.ndarray, rows: int, name: str = "owners") -> list[str]:
    """List what is wrong with the owners of `rows` rows."""
    wrong = []
    if owners.dtype.kind not in "iubUS":
        wrong.append(f"{name} is {owners.dtype}; name owners by integers or by strings (.astype(str))")
    if owners.shape != (rows,):
        wrong.append(f"{name} has shape {owners.shape}, but there are {rows} rows; give one owner a row, `[{rows}]`")
    return wrong


def number_of_classes(y: np.ndarray, task: str) -> int:
    """The number of classes or ids; of a regression, the number of outputs of a model."""
    return math.prod(y.shape[1:]) if task == "regression" else int(y.max()) + 1
