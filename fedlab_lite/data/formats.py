"""Readers for the formats of published data sets, whose files `sources` has checked.

Each reader takes paths and returns arrays under the keys of an `.npz`. It raises `CorruptFileError` for a file that
cannot be read.
"""

import contextlib
import gzip
import hashlib
import io
import pickle
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedlab_lite.data import text
from fedlab_lite.util import CorruptFileError, cache_dir, write_atomic

Arrays = dict[str, np.ndarray]  # x_train, y_train, x_test, y_test; owner_train, owner_test where samples have owners


def gunzip(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception | str) -> CorruptFileError:
    return CorruptFileError(
        f"{path} cannot be read, it may be truncated ({error}). Nothing was deleted; move it away and get it anew"
    )


def read_idx(paths: list[Path]) -> Arrays:
    """Read Fashion-MNIST (Xiao et al. 2017): gzipped IDX files with headers of 16 (images) and 8 bytes (labels)."""
    content = [np.frombuffer(gunzip(path), np.uint8) for path in paths]
    images = [each[16:].reshape(-1, 28, 28, 1) for each in content[::2]]
    labels = [each[8:].astype(np.int32) for each in content[1::2]]
    return {"x_train": images[0], "y_train": labels[0], "x_test": images[1], "y_test": labels[1]}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler for CIFAR: it reads NumPy arrays, as Python 2 wrote them, and refuses to import anything else."""

    def find_class(self, module: str, name: str):
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np._core.multiarray._reconstruct
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")


def read_cifar(train: tuple[str, ...], test: tuple[str, ...], label: bytes) -> Callable[[list[Path]], Arrays]:
    """Make a reader of CIFAR (Krizhevsky 2009): pickled batches in a .tar.gz, rows of 3072 bytes, plane by plane."""

    def read(paths: list[Path]) -> Arrays:
        batches = {}
        with tarfile.open(paths[0]) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in train + test:
                    content = io.BytesIO(archive.extractfile(member).read())
                    batches[name] = _ArraysOnly(content, encoding="bytes").load()
        arrays = {}
        for part, names in (("train", train), ("test", test)):
            x = np.concatenate([batches[name][b"data"] for name in names])
            arrays[f"x_{part}"] = np.ascontiguousarray(x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            arrays[f"y_{part}"] = np.concatenate([batches[name][label] for name in names]).astype(np.int32)
        return arrays

    return read


def unpack(path: Path, names: tuple[str, ...]) -> list[Path]:
    """Unpack the files `names` of a verified archive once, into the cache, each with its SHA-256 in a file beside it.

    Raises `CorruptFileError`, which names the file, where an unpacked file has changed.
    """
    unpacked = [cache_dir() / "unpacked" / sha256_of_file(path)[:12] / name for name in names]
    if not all(file.is_file() and _sum_of(file).is_file() for file in unpacked):
        with tarfile.open(path) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for file in unpacked:
                content = archive.extractfile(members[file.name]).read()
                write_atomic(file, content)
                write_atomic(_sum_of(file), hashlib.sha256(content).hexdigest().encode())
    for file in unpacked:
        expected, found = _sum_of(file).read_text(errors="replace"), sha256_of_file(file)
        if found != expected:
            raise CorruptFileError(
                f"{file} is not what was unpacked from {path.name}: sha256 is {found}, was {expected}. Nothing was "
                f"deleted; remove it and {_sum_of(file).name} beside it, and it is unpacked again"
            )
    return unpacked


def _sum_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def sha256_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _examples(path: Path) -> Iterator[Any]:
    """Open the clients of a TensorFlow Federated file; any error while reading them becomes a `CorruptFileError`."""
    import h5py

    try:
        with h5py.File(path) as file:
            yield file["examples"]
    except Exception as error:  # HDF5 may raise anything for a damaged file
        raise unreadable(path, f"{type(error).__name__}: {error}") from error


def read_femnist(paths: list[Path]) -> Arrays:
    """Read FEMNIST (TensorFlow Federated): examples/<client>/pixels, float `[n, 28, 28]`, and label `[n]`.

    In the file paper is 1. Images are returned as uint8 with bright ink: 255 * (1 - pixel), rounded. Owners number the
    writers in the order of their names.
    """
    arrays = {}
    for part, path in zip(("train", "test"), paths, strict=True):
        x, y, owner = [], [], []
        with _examples(path) as examples:
            writers = sorted(examples)
            if part == "train":
                number = {writer: k for k, writer in enumerate(writers)}
            for writer in writers:
                group = examples[writer]
                x.append(np.rint(255 * (1 - group["pixels"][:])).astype(np.uint8))
                y.append(group["label"][:].astype(np.int32))
                owner.append(np.full(len(y[-1]), number.setdefault(writer, len(number)), np.int32))
        arrays[f"x_{part}"] = np.concatenate(x)[..., None]
        arrays[f"y_{part}"], arrays[f"owner_{part}"] = np.concatenate(y), np.concatenate(owner)
    return arrays


def read_shakespeare(paths: list[Path]) -> Arrays:
    """Read Shakespeare (TensorFlow Federated, after LEAF): examples/<role>/snippets, `[n]` texts; see `text.by_role`.

    Each byte is one character, as in FedJax.
    """
    parts = []
    for path in paths:
        with _examples(path) as roles:
            parts.append({role: list(roles[role]["snippets"].asstr("latin-1")[:]) for role in roles})
    return text.by_role(*parts)


ACTIVITIES = ("call", "hop", "typing", "walk", "wave")  # of HARBox; y numbers them
_WINDOW, _AXES = 100, 9  # two seconds at 50 Hz; accelerometer, gyroscope and magnetometer along x, y and z


def read_harbox(paths: list[Path]) -> Arrays:
    """Read HARBox (Ouyang et al. 2021): a .zip of <user>/<Activity>_train.txt, each line a time and nine readings.

    A window is a hundred lines without their times, otherwise as recorded: x is float32 `[n, 900]`. Of the n windows of
    each user floor(n / 5) + 1 are for testing. They are the ones that DePRL's code draws (scikit-learn's
    `train_test_split`, seed 0). Owners are the numbers of the users: all of them, while that code reads 1 ... 120.
    """
    found: dict[int, dict[int, np.ndarray]] = {}
    with zipfile.ZipFile(paths[0]) as archive:
        for name in archive.namelist():
            if match := re.fullmatch(r"(?:.*/)?(\d+)/([^/.]+)_train\.txt", name):
                user, activity = int(match[1]), match[2].lower()
                if activity not in ACTIVITIES:
                    raise unreadable(paths[0], f"{name}: the activities are {', '.join(ACTIVITIES)}")
                try:
                    windows = _windows(archive.read(name))
                except ValueError as error:
                    raise unreadable(paths[0], f"{name}: {error}") from error
                found.setdefault(user, {})[ACTIVITIES.index(activity)] = windows
    if not found:
        raise unreadable(paths[0], "it holds no <user>/<Activity>_train.txt")
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


def _windows(content: bytes) -> np.ndarray:
    """Parse text into windows, float32 `[n, 900]`; raise `ValueError` where the text is wrong."""
    if not content.strip():
        raise ValueError("it is empty")
    lines = np.loadtxt(content.decode("ascii").splitlines(), np.float32, ndmin=2)
    if lines.shape[1] != 1 + _AXES:
        raise ValueError(f"a line has {lines.shape[1]} numbers, not {1 + _AXES}")
    if len(lines) % _WINDOW:
        raise ValueError(f"its {len(lines)} lines are no whole number of windows of {_WINDOW}")
    readings = lines[:, 1:]
    if not np.isfinite(readings).all():
        raise ValueError(f"line {1 + int(np.argwhere(~np.isfinite(readings))[0, 0])} holds NaN or infinity")
    return readings.reshape(-1, _WINDOW * _AXES)
