"""The run store: finished runs, checkpoints and final states in files that are never partial.

| file                | holds                                                  | format                                |
| ---                 | ---                                                    | ---                                   |
| `<name>.npz`        | a finished run: curves and how it was run              | numpy arrays and JSON, at most 1 MB   |
| `<name>.curves.npz` | all clients' curves, float16, where 1 MB is too little | numpy arrays and JSON                 |
| `<name>.<what>.npz` | numbers that a figure took from the final state        | numpy arrays and JSON                 |
| `<name>.ckpt`       | an unfinished run: state, next round, curves so far    | msgpack after a line with its SHA-256 |
| `<name>.state`      | a finished run's final state, on request               | the same                              |

A run is one trajectory: settings with one seed. Its name depends on what decides its numbers (see `runs.run_name`), so
a file is never out of date. Finished runs are looked for in `$FEDLAB_RUNS`, then among the runs of committed figures,
`figures/<paper>/runs/`; files are written to the former. No pickle anywhere: reading a file cannot run code.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization
from jax.experimental import multihost_utils

from fedlab_lite.engine import History, Progress, to_host
from fedlab_lite.runs import contents
from fedlab_lite.util import CorruptFileError, InputError, files, sha256_of_arrays, write_atomic

MAX_BYTES = 1_000_000  # limit of a finished run, so that hundreds of them are easy to share
_HEADER = b"fedlab 1 sha256 "


def path(name: str, kind: str) -> Path:
    """The path that `kind` ('npz', 'curves.npz', 'ckpt', 'state') of the run `name` is written to, in the store."""
    if "/" in kind or "\\" in kind:
        raise InputError(f"{kind!r} is part of a file's name in {files.runs_dir()}; use letters, digits and dashes")
    return files.runs_dir() / f"{name}.{kind}"


def find(name: str, kind: str = "npz") -> Path | None:
    """The path of `kind` of a finished run, in the store or among committed figures; None: not stored."""
    places = (folder / f"{name}.{kind}" for folder in folders())
    return next((place for place in places if os.path.exists(place)), None)  # not in a folder that is closed to us


def folders() -> list[Path]:
    """The folders of finished runs: the store, and those of the committed figures."""
    return [files.runs_dir(), *sorted(files.figures_dir().glob("*/runs"))]


def remove(file: Path) -> None:
    """Remove a file; of several processes that compute together, only process 0 removes it.

    A file that cannot be removed stays.
    """
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def agree(name: str) -> None:
    """Raise `InputError` unless all processes that compute together are about to train the same run."""
    if jax.process_count() == 1:
        return
    own = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint8)
    names = multihost_utils.process_allgather(own)
    if (names != names[0]).any():
        raise InputError(
            f"process {jax.process_index()} is about to train {name}, but another process trains something else; "
            "start all processes with the same command, settings, data and version"
        )


def first_says(value: bool) -> bool:
    """Broadcast process 0's value to all processes."""
    return bool(multihost_utils.broadcast_one_to_all(np.array(value)))


def corrupt(file: Path, reason: str) -> CorruptFileError:
    return CorruptFileError(
        f"{file} is corrupt ({reason}). Nothing was changed; `--force` (or `run(..., force=True)`) renames the file to "
        f"{file.name}.corrupt and computes the run again."
    )


@contextlib.contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn every error of what is read from `file`, damaged, crafted or of another version, into `CorruptFileError`."""
    try:
        yield
    except CorruptFileError:
        raise
    except Exception as error:
        why = "it is malformed, or another version of fedlab_lite wrote it"
        raise corrupt(file, f"{why}: {type(error).__name__}: {error}") from error


def set_aside(name: str) -> None:
    """Remove a run from the store; files that this version cannot read are renamed to `<name>.corrupt`."""
    found = files.runs_dir().glob(f"{name}.*npz")
    readers: dict[Path, Callable[[Path], Any]] = dict.fromkeys(found, load_arrays)
    readers |= {path(name, "npz"): _history, path(name, "ckpt"): load_checkpoint, path(name, "state"): load_state}
    for file, read in readers.items():
        try:
            try:
                if read(file) is not None:
                    file.unlink()
            except CorruptFileError:
                file.replace(file.with_name(f"{file.name}.corrupt"))
        except OSError as error:  # a read-only disk; a second directory in its place
            raise files.cannot_write(file, error) from error


def _digest(arrays: dict[str, np.ndarray], meta: dict) -> str:
    return sha256_of_arrays(dict(sorted(arrays.items())), json.dumps(meta, sort_keys=True).encode())


def save_arrays(file: Path, arrays: dict[str, np.ndarray], meta: dict) -> Path:
    """Write arrays and a dictionary for JSON, with a checksum over everything."""
    return _write(file, _packed(arrays, meta))


def _packed(arrays: dict[str, np.ndarray], meta: dict) -> bytes:
    text = json.dumps(meta | {"checksum": _digest(arrays, meta)}, sort_keys=True)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays, meta=np.frombuffer(text.encode(), np.uint8))
    return buffer.getvalue()


def _write(file: Path, content: bytes) -> Path:
    """Write a file; of several processes that compute together, only process 0 writes."""
    return write_atomic(file, content) if jax.process_index() == 0 else file


def _content(file: Path) -> bytes | None:
    """The content of a file; None where there is no such file.

    Raises `CorruptFileError` for a file that cannot be read, or a directory.
    """
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        advice = "ask its owner to make it readable, or set FEDLAB_RUNS to a folder of your own"
        raise CorruptFileError(f"{file} cannot be read: {error.strerror}; {advice}") from error
    except OSError as error:
        raise corrupt(file, error.strerror or str(error)) from error


def load_arrays(file: Path) -> tuple[dict[str, np.ndarray], dict] | None:
    """Load what `save_arrays` wrote; None where there is no such file.

    Raises `CorruptFileError` for a damaged file.
    """
    content = _content(file)
    if content is None:
        return None
    with readable(file):
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = dict(archive)
        meta = json.loads(arrays.pop("meta").tobytes())
        checksum = meta.pop("checksum")
    if checksum != _digest(arrays, meta):
        raise corrupt(file, "its checksum does not match its content")
    return arrays, meta


def save_history(name: str, history: History) -> Path:
    """Store a finished run; all clients' curves go to a second file, as float16, if one file would be too large.

    The accuracies at the end stay exact.
    """
    arrays = {f"metric {metric}": values for metric, values in history.metrics.items()}
    arrays |= {"rounds": history.rounds, "client_curves": history.client_curves}
    meta = {field: getattr(history, field) for field in contents.META}
    content = _packed(arrays, meta)
    if len(content) > MAX_BYTES:
        curves = {"client_curves": arrays.pop("client_curves").astype(np.float16)}
        save_arrays(path(name, "curves.npz"), curves, {})
        content = _packed(arrays | {"client_accuracy": history.client_accuracy}, meta)
    return _write(path(name, "npz"), content)


def load_history(name: str) -> History | None:
    """Load a finished run; None where it is not stored. Raises `CorruptFileError`."""
    file = find(name)
    return _history(file) if file else None


def _history(file: Path) -> History | None:
    found = load_arrays(file)
    if found is None:
        return None
    arrays, meta = found
    with readable(file):
        if (final := arrays.pop("client_accuracy", None)) is not None:
            apart = find(file.stem, "curves.npz")
            curves = apart and load_arrays(apart)
            if not curves:
                raise corrupt(file, f"{file.stem}.curves.npz, which has its clients' curves, is missing")
            arrays["client_curves"] = curves[0]["client_curves"].astype(np.float32)
            arrays["client_curves"][:, -1] = final
        metrics = contents.metrics_of(arrays)
        contents.check_history(meta, arrays["rounds"], metrics, arrays["client_curves"])
        if "precision" not in meta:  # written before it was chosen: JAX's own default for the device
            meta |= {} if "cpu" in meta["device"] else {"precision": "tf32", "executor": "vmap"}
        meta |= {"diverged": tuple(meta["diverged"]), "seeds": tuple(meta["seeds"])}
        return History(metrics=metrics, rounds=arrays["rounds"], client_curves=arrays["client_curves"], **meta)


def publish(names: Sequence[str], folder: Path) -> list[Path]:
    """Copy the files of finished runs (histories, what was measured), each as `find` finds it, to a figure's folder."""
    wanted, lying = set(names), {}
    for place in reversed(folders()):
        lying |= {file.name: file for file in place.glob("*.npz") if file.name.partition(".")[0] in wanted}
    for name, file in lying.items():
        if file.parent != folder:
            write_atomic(folder / name, file.read_bytes())
    return [folder / name for name in sorted(lying)]


def save_tree(file: Path, tree: dict) -> Path:
    """Write a dictionary of arrays, numbers and text."""
    payload = serialization.msgpack_serialize(tree)
    header = _HEADER + hashlib.sha256(payload).hexdigest().encode() + b"\n"
    return _write(file, header + payload)


def load_tree(file: Path, content: bytes | None = None) -> dict | None:
    """Load the dictionary that `save_tree` wrote; None where there is no such file.

    Args:
      content: of the file, where it has been read.

    Raises `CorruptFileError` for a damaged file.
    """
    content = _content(file) if content is None else content
    if content is None:
        return None
    header, _, payload = content.partition(b"\n")
    if header != _HEADER + hashlib.sha256(payload).hexdigest().encode():
        raise corrupt(file, "its checksum does not match its content")
    with readable(file):
        return dict(serialization.msgpack_restore(payload))


def load_state(file: Path) -> dict | None:
    """The final state in a file, as `pack` made it; None where there is no such file. Raises `CorruptFileError`."""
    found = load_tree(file)
    with readable(file):
        return None if found is None else dict(found["state"])


def load_checkpoint(file: Path, content: bytes | None = None) -> tuple[dict, Progress, dict] | None:
    """A checkpoint's state, its progress, and what it was made with; see `load_tree`."""
    found = load_tree(file, content)
    with readable(file):
        if found is None:
            return None
        progress = Progress(**found["progress"])
        contents.check_progress(progress)
        return dict(found["state"]), progress, dict(found.get("made", {}))


def pack(tree) -> dict[str, np.ndarray]:
    """The leaves of a pytree (arrays, also PRNG keys) as numpy arrays, by their number."""

    def to_numpy(leaf):
        return to_host(jax.random.key_data(leaf) if _is_key(leaf) else leaf)

    return {str(index): to_numpy(leaf) for index, leaf in enumerate(jax.tree.leaves(tree))}


def unpack(file: Path, leaves: dict[str, np.ndarray], like):
    """Rebuild a pytree that `pack` took apart, with `like`'s structure, shapes and types.

    Raises `CorruptFileError` if they differ.
    """
    shapes, structure = jax.tree.flatten(like)
    raw = [jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf for leaf in shapes]
    with readable(file):
        found = [leaves[str(index)] for index in range(len(leaves))]
        same = [(a.shape, a.dtype) for a in found] == [(b.shape, b.dtype) for b in raw]
    if not same:
        raise corrupt(file, "its arrays have other shapes than those of this run")
    rebuilt = [
        jax.random.wrap_key_data(array) if _is_key(leaf) else array for array, leaf in zip(found, shapes, strict=True)
    ]
    return jax.tree.unflatten(structure, rebuilt)


def _is_key(leaf) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
