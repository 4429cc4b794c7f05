"""`Federated`, the stacked arrays of all clients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import compress
from typing import Any

import jax
import numpy as np

from fedlab_lite.data.pool import TASKS, wrong_rows
from fedlab_lite.data.pooled_rows import POOL_BEYOND, Rows, counted, is_rows
from fedlab_lite.data.text import PAD
from fedlab_lite.util import InputError, choose, sha256_of_arrays

Pair = tuple[np.ndarray, np.ndarray]  # x and y of one client
_ARRAYS = ("x", "y", "size", "test_x", "test_y", "test_size", "shared_x", "budget")
_STATIC = ("name", "source", "num_classes", "task", "label_words", "client_names", "x_range")


@partial(jax.tree_util.register_dataclass, data_fields=_ARRAYS, meta_fields=_STATIC)
@dataclass(frozen=True, eq=False)
class Federated:
    """The data of all clients, stacked on axis 0; a pytree, so it can be an argument of a `jit` function.

    Clients differ in size: only the first `size[i]` rows of client i count, the others are zeros. Pixels stay uint8, or
    uint16 where they have more than 8 bits.
    Where most of a large x would be padding, it is `Rows`: each row stored once, with the places of each client's rows.

    Example:
      >>> two = [(np.zeros((n, 4), np.float32), np.arange(n)) for n in (1, 3)]
      >>> data = Federated.stack(two, two, name="toy", source="made up", num_classes=3)
      >>> data.x.shape, data.size.tolist(), data.num_clients, data.input_shape
      ((2, 3, 4), [1, 3], 2, (4,))
      >>> data
      Federated(toy, made up: 2 clients, rows of shape (4,), 3 classes)
    """

    x: np.ndarray | Rows  # [clients, n_max, ...]
    y: np.ndarray  # [clients, n_max, ...] int32; for a task of your own also floats
    size: np.ndarray  # [clients] int32
    test_x: np.ndarray | Rows  # [clients, test_max, ...]; or [1, test_max, ...], one test set for all clients
    test_y: np.ndarray  # [clients, test_max, ...], or [1, ...]; of the type of y
    test_size: np.ndarray  # [clients] int32, or [1]
    shared_x: np.ndarray  # [shared, ...], unlabelled, on the server; its length may be 0
    name: str
    source: str  # for readers: "embedded glyphs", "fashion_mnist (official)"
    num_classes: int  # the number of outputs of a model
    task: str = "classification"  # one of TASKS
    budget: np.ndarray | None = None  # [clients] int32, solver iterations that each client can afford; None: no limit
    label_words: tuple[str, ...] = ()  # the word for each label 0, 1, ...; (): not known
    client_names: tuple[str, ...] = ()  # the recorded owner of each client's rows; (): not known
    x_range: tuple | None = None  # what is 0 and what is 1 in x in the file, where x was scaled (see `ranges`)

    def __repr__(self) -> str:
        rows = f"{self.num_clients} clients, rows of shape {self.input_shape}"
        return f"Federated({self.name}, {self.source}: {rows}, {self.num_classes} classes)"

    @property
    def num_clients(self) -> int:
        return self.x.shape[0]

    @property
    def common_test(self) -> bool:
        """Whether all clients are tested on the same rows."""
        return len(self.test_size) == 1 < self.num_clients

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[2:])

    @classmethod
    def stack(
        cls,
        train: Sequence[Pair],
        test: Sequence[Pair],
        *,
        name: str,
        source: str,
        num_classes: int,
        task: str = "classification",
        shared_x: np.ndarray | None = None,
        common_test: bool = False,
    ) -> "Federated":
        """Stack one (x `[n, ...]`, y `[n, ...]`) per client, padded with zeros; `common_test`: one test set for all.

        `task` is one of `TASKS`.

        Raises `InputError`, naming the client, when it has no samples, when x and y differ in length, or when shapes or
        types differ between clients. Raises it also when x holds NaN or infinity, when a label is no whole number in
        0 ... num_classes - 1, and for an unknown task.
        """
        choose("task", task, TASKS)
        if not train or len(test) != (1 if common_test else len(train)):
            raise InputError(
                f"{name}: {len(train)} clients have training data and {len(test)} have test data; "
                "both lists need one entry per client, and at least one (with common_test: one test set for all)"
            )
        train, test = ([(np.asarray(x), np.asarray(y)) for x, y in part] for part in (train, test))
        (x, y), form = train[0], _form(*train[0])
        for kind, part in (("training", train), ("test", test)):
            for client, pair in enumerate(part):
                _check(f"{name}: the {kind} data of client {client}", *pair, form, num_classes)
        shared_x = x[:0] if shared_x is None else np.asarray(shared_x)
        if _form(shared_x, y) != form:
            shared = _form(shared_x, y)[0]
            raise InputError(f"{name}: shared_x is {shared}, but the clients' x is {form[0]}; convert one to the other")
        return cls(*_pad(train), *_pad(test), _narrow(shared_x), name, source, num_classes, task)

    def split(self, unseen: int, seed: int = 0) -> "tuple[Federated, Federated]":
        """Split off `unseen` clients as newcomers; return the other clients and the newcomers, each in their order.

        Shared rows go to both. Newcomers are drawn uniformly without replacement, by
        `numpy.random.default_rng([seed, 3])`. Owners are sorted, so the last clients would be a biased choice. Raises
        `InputError` unless both parts have at least one client.

        Example:
          >>> five = [(np.full((1, 2), k, np.uint8), np.zeros(1, int)) for k in range(5)]
          >>> data = Federated.stack(five, five, name="toy", source="made up", num_classes=1)
          >>> [part.x[:, 0, 0].tolist() for part in data.split(2)]
          [[0, 1, 3], [2, 4]]
        """
        if not 1 <= unseen < self.num_clients:
            raise InputError(f"{unseen} unseen clients of {self.num_clients}: choose at least 1, and leave 1 to train")
        newcomer = np.zeros(self.num_clients, bool)
        newcomer[np.random.default_rng([seed, 3]).choice(self.num_clients, unseen, replace=False)] = True

        def part(clients: np.ndarray) -> Federated:
            whole = {"shared_x", *(("test_x", "test_y", "test_size") if self.common_test else ())}
            kept = {name: getattr(self, name) for name in _ARRAYS if name not in whole}
            rows = {name: array[clients] for name, array in kept.items() if array is not None}
            return replace(self, **rows, client_names=tuple(compress(self.client_names, clients)))

        return part(~newcomer), part(newcomer)

    def hold_out(self, share: float, seed: int = 0) -> "tuple[Federated, Federated]":
        """Hold out training rows; return the data without them, and the same data with them as the test set for tuning.

        Of each client's n training rows floor(`share` n), but at least one, are drawn by
        `numpy.random.default_rng([seed, 4, client])`; rows keep their order. Where the test set is common, the rows
        held out are common too, `[1, V, ...]`. Otherwise a client with one class would be tested on that class only.

        Args:
          share: of each client's training rows, between 0 and 1, both excluded.
          seed: of the draw.

        Raises: `InputError` for another share, and, naming the client, where a client would have no row to train on.

        Example:
          >>> two = [(np.zeros((n, 4), np.float32), np.arange(n)) for n in (2, 10)]
          >>> data = Federated.stack(two, two, name="toy", source="made up", num_classes=10)
          >>> rest, tuning = data.hold_out(0.25)
          >>> rest.size.tolist(), rest.test_size.tolist(), rest.x.shape
          ([1, 8], [2, 10], (2, 8, 4))
          >>> tuning.size.tolist(), tuning.test_size.tolist(), tuning.test_x.shape
          ([1, 8], [1, 2], (2, 2, 4))
        """
        if not 0 < share < 1:
            raise InputError(f"the share to hold out is {share}; choose one between 0 and 1, for example 0.2")
        x, y, size = self.x if is_rows(self.x) else np.asarray(self.x), np.asarray(self.y), np.asarray(self.size)
        count = np.maximum(1, np.floor(share * size)).astype(np.int32)
        if (count >= size).any():
            client = int(np.argmax(count >= size))
            raise InputError(
                f"{self.name}: client {client} has too few training rows ({size[client]}) to hold one out and train on "
                "the others; use more samples, fewer clients, or another partition, so that each client has two"
            )
        held = np.zeros(y.shape[:2], bool)
        for client in range(self.num_clients):
            rng = np.random.default_rng([seed, 4, client])
            held[client, rng.choice(size[client], count[client], replace=False)] = True
        kept = ~held & counted(size, held.shape[1])
        rest = replace(self, x=_packed(x, kept), y=_packed(y, kept), size=size - count)
        if self.common_test:
            test_x, test_y, count = x[held][None], y[held][None], count.sum(keepdims=True, dtype=np.int32)
        else:
            test_x, test_y = _packed(x, held), _packed(y, held)
        return rest, replace(rest, test_x=test_x, test_y=test_y, test_size=count)

    def fingerprint(self) -> str:
        """The SHA-256 (hex) of all arrays and the number of classes: equal exactly when the contents are equal."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        arrays = {field: getattr(self, field) for field in _ARRAYS if getattr(self, field) is not None}
        return sha256_of_arrays(arrays, str(self.num_classes).encode())

    def summary(self) -> dict[str, str | int | float]:
        """The columns of FeDEQ's Table I: clients, samples, mean and standard deviation per client, classes per client.

        A further column, 'padding', is the share of padding among the stacked rows of training and test.
        """
        train, test = int(np.sum(self.size)), int(np.sum(self.test_size))
        places = sum(y.shape[0] * y.shape[1] for y in (self.y, self.test_y))
        summary = {"name": self.name, "source": self.source, "clients": self.num_clients, "train": train, "test": test}
        summary |= {"mean": round(float(np.mean(self.size)), 1), "std": round(float(np.std(self.size)), 1)}
        summary |= {"padding": round(1 - (train + test) / places, 3)}
        pads = {PAD} if self.task == "next_character" else set()  # not a class
        held = [len({*np.unique(y[:n])} - pads) for y, n in zip(np.asarray(self.y), np.asarray(self.size), strict=True)]
        return summary | {"classes": self.num_classes, "classes_per_client": round(float(np.mean(held)), 1)}


def _form(x: np.ndarray, y: np.ndarray) -> tuple[str, str]:
    """The form of a row, which all clients share."""
    return f"{x.dtype} {x.shape[1:]}", f"{y.shape[1:]}"


def _check(whose: str, x: np.ndarray, y: np.ndarray, form: tuple[str, str], num_classes: int) -> None:
    if x.shape[:1] == y.shape[:1] == (0,):
        raise InputError(f"{whose} are empty; use fewer clients, more samples, or another partition")
    if wrong := wrong_rows(x, y, num_classes):
        raise InputError(f"{whose}: {wrong[0]}")
    for label, own, first in zip(("x", "y"), _form(x, y), form, strict=True):
        if own != first:
            raise InputError(f"{whose}: a row of {label} is {own}, client 0's is {first}; convert one to the other")


def _narrow(array: np.ndarray) -> np.ndarray:
    """Convert 64-bit numbers to 32 bits, JAX's default, and others to this machine's byte order."""
    narrow = {"f8": np.float32, "i8": np.int32, "u8": np.uint32}
    return array.astype(narrow.get(array.dtype.str[1:], array.dtype.newbyteorder("=")))


def _pad(part: list[Pair]) -> tuple[np.ndarray | Rows, np.ndarray, np.ndarray]:
    size = np.array([len(x) for x, _ in part], np.int32)
    x_type, places = _narrow(part[0][0][:0]).dtype, len(part) * int(size.max())

    def padded(k: int, dtype: np.dtype) -> np.ndarray:
        rows = np.zeros((len(part), size.max(), *part[0][k].shape[1:]), dtype)
        for client, pair in enumerate(part):
            rows[client, : size[client]] = pair[k]
        return rows

    cost = places * x_type.itemsize * math.prod(part[0][0].shape[1:])
    if cost > POOL_BEYOND and places > 2 * size.sum():
        return Rows.of([x.astype(x_type, copy=False) for x, _ in part]), padded(1, np.dtype(np.int32)), size
    return padded(0, x_type), padded(1, np.dtype(np.int32)), size


def _packed(array: Any, rows: np.ndarray, fill: int = 0) -> Any:
    """Move the selected `rows` (True in `[clients, n_max]`) of each client to the front; pad to the largest client."""
    if is_rows(array):
        return replace(array, place=_packed(array.place, rows, fill=len(array.pool) - 1))
    size = rows.sum(1)
    packed = np.full((len(array), size.max(), *array.shape[2:]), fill, array.dtype)
    packed[counted(size, size.max())] = array[rows]
    return packed
