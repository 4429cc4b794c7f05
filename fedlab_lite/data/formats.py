"""Readers for the formats of published data sets, whose files `sources` has opened and checked.

Each reader takes open files and returns the arrays of a `Pool` by name: `x_train`, `y_train`, `x_test` and `y_test`.
Where samples have owners, it also returns `owner_train` and `owner_test`. It may raise any error for a damaged file.
"""

import io
import pickle
import re
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlab_lite.data import text

Files = Sequence[Any]  # open files; of HDF5 also paths
Arrays = dict[str, np.ndarray]
PARTS = ("train", "test")


def members(archive: Any, names: Sequence[str]) -> Files:
    """The files `names` of a tar archive, in memory: one pass, because to go back would decompress it again."""
    with tarfile.open(fileobj=archive) as found:
        content = {k: found.extractfile(each).read() for each in found if (k := Path(each.name).name) in names}
    return [io.BytesIO(content[name]) for name in names]


def read_idx(files: Files) -> Arrays:
    """Read Fashion-MNIST (Xiao et al. 2017): IDX files with headers of 16 (images) and 8 bytes (labels)."""
    content = [np.frombuffer(file.read(), np.uint8) for file in files]
    images = [each[16:].reshape(-1, 28, 28, 1) for each in content[::2]]
    labels = [each[8:].astype(np.int32) for each in content[1::2]]
    return {"x_train": images[0], "y_train": labels[0], "x_test": images[1], "y_test": labels[1]}


class _ArraysOnly(pickle.Unpickler):  # noqa: S301  (what it may import is in `find_class`)
    """An unpickler for CIFAR: it reads NumPy arrays, as Python 2 wrote them, and refuses to import anything else."""

    def find_class(self, module: str, name: str):
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np._core.multiarray._reconstruct
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")


def read_cifar(files: Files, *, train: tuple[str, ...], test: tuple[str, ...], label: bytes) -> Arrays:
    """Read CIFAR (Krizhevsky 2009): pickled batches in a .tar.gz, rows of 3072 bytes, plane by plane."""
    opened = zip(train + test, members(files[0], train + test), strict=True)
    batches, arrays = {name: _ArraysOnly(file, encoding="bytes").load() for name, file in opened}, {}
    for part, names in zip(PARTS, (train, test), strict=True):
        x = np.concatenate([batches[name][b"data"] for name in names])
        arrays[f"x_{part}"] = np.ascontiguousarray(x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        arrays[f"y_{part}"] = np.concatenate([batches[name][label] for name in names]).astype(np.int32)
    return arrays


def read_femnist(files: Files) -> Arrays:
    """Read FEMNIST (TensorFlow Federated): examples/<client>/pixels, float `[n, 28, 28]`, and label `[n]`.

    In the file paper is 1. Images are returned as uint8 with bright ink: 255 * (1 - pixel), rounded. Owners number the
    writers of the training file in the order of their names, then the others.
    """
    import h5py

    arrays, number = {}, {}
    for part, path in zip(PARTS, files, strict=True):
        x, y, owner = [], [], []
        with h5py.File(path) as file:
            for writer, group in sorted(file["examples"].items()):
                x.append(np.rint(255 * (1 - group["pixels"][:])).astype(np.uint8))
                y.append(group["label"][:].astype(np.int32))
                owner.append(np.full(len(y[-1]), number.setdefault(writer, len(number)), np.int32))
        arrays[f"x_{part}"] = np.concatenate(x)[..., None]
        arrays[f"y_{part}"], arrays[f"owner_{part}"] = np.concatenate(y), np.concatenate(owner)
    return arrays


def read_shakespeare(files: Files) -> Arrays:
    """Read Shakespeare (TensorFlow Federated, after LEAF): examples/<role>/snippets, `[n]` texts; see `text.by_role`.

    Each byte is one character, as in FedJax.
    """
    import h5py

    parts = []
    for path in files:
        with h5py.File(path) as file:
            roles = file["examples"].items()
            parts.append({role: list(group["snippets"].asstr("latin-1")[:]) for role, group in roles})
    return text.by_role(*parts)


ACTIVITIES = ("call", "hop", "typing", "walk", "wave")  # of HARBox; y numbers them


def read_harbox(files: Files) -> Arrays:
    """Read HARBox (Ouyang et al. 2021): a .zip of <user>/<Activity>_train.txt, each line a time and nine readings.

    A window is a hundred lines, two seconds, without their times: x is float32 `[n, 900]`. Of the n windows of each
    user floor(n / 5) + 1 are for testing. They are the ones that DePRL's code draws (scikit-learn's
    `train_test_split`, seed 0). Owners are the numbers of the users: all of them, while that code reads 1 ... 120.
    """
    found: dict[int, dict[int, np.ndarray]] = {}
    with zipfile.ZipFile(files[0]) as archive:
        for name in archive.namelist():
            if match := re.fullmatch(r"(?:.*/)?(\d+)/([^/.]+)_train\.txt", name):
                lines = np.loadtxt(archive.read(name).decode("ascii").splitlines(), np.float32, ndmin=2)
                windows = lines[:, 1:].reshape(-1, 900)  # without the times
                found.setdefault(int(match[1]), {})[list(ACTIVITIES).index(match[2].lower())] = windows
    if not found:
        raise ValueError("it holds no <user>/<Activity>_train.txt")
    arrays: dict[str, list[np.ndarray]] = {}
    for user, by_activity in sorted(found.items()):
        x = np.concatenate([windows for _, windows in sorted(by_activity.items())])
        y = np.concatenate([np.full(len(windows), k, np.int32) for k, windows in sorted(by_activity.items())])
        order = np.random.RandomState(0).permutation(len(x))
        tests = int(0.2 * len(x)) + 1
        for part, rows in (("train", order[tests:]), ("test", order[:tests])):
            for kind, array in (("x", x), ("y", y), ("owner", np.full(len(x), user, np.int32))):
                arrays.setdefault(f"{kind}_{part}", []).append(array[rows])
    return {key: np.concatenate(parts) for key, parts in arrays.items()}
