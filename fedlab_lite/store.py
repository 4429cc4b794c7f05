"""The run store: finished runs, checkpoints and final states as files that are whole or not there.

| file          | holds                                                   | format                                  |
| ---           | ---                                                     | ---                                     |
| `<key>.npz`   | a finished run: curves, final accuracies, how it was run | numpy arrays and JSON, at most 1 MB     |
| `<key>.ckpt`  | an unfinished run: state, next round, curves so far     | msgpack after a line with its SHA-256   |
| `<key>.state` | a finished run's final state, on request                | the same                                |

A key names the settings, the data and the code that decides the numbers, so a file under a key never goes stale.
No pickle anywhere: reading a file cannot run code.
"""

import contextlib
import hashlib
import io
import json
import time
import zipfile
import zlib
from pathlib import Path

import jax
import numpy as np
from flax import serialization

from fedlab_lite.errors import CorruptFileError, FedlabError
from fedlab_lite.files import runs_dir, sha256_of_arrays, write_atomic

MAX_BYTES = 1_000_000  # a finished run: small enough to send around by the hundred
_HEADER = b"fedlab 1 sha256 "


def path(key: str, kind: str) -> Path:
    """Where `kind` ('npz', 'ckpt' or 'state') of the run `key` lies."""
    return runs_dir() / f"{key}.{kind}"


def corrupt(file: Path, reason: str) -> CorruptFileError:
    return CorruptFileError(
        f"{file} is corrupt ({reason}). Nothing was changed; `--force` (or `run(..., force=True)`) sets the file aside "
        f"as {file.name}.corrupt and recomputes the run."
    )


def set_aside(key: str) -> None:
    """Forget the run: what can be read is removed, what cannot is renamed to `<name>.corrupt`."""
    for kind, read in (("npz", load_run), ("ckpt", load_tree), ("state", load_tree)):
        file = path(key, kind)
        try:
            read(file)
            file.unlink(missing_ok=True)
        except CorruptFileError:
            file.replace(file.with_name(f"{file.name}.corrupt"))


def sweep() -> None:
    """Remove what processes that were killed while writing have left; an hour old, so nobody writes it any more."""
    for file in runs_dir().glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > 3600:
                file.unlink()


def _digest(arrays: dict[str, np.ndarray], meta: dict) -> str:
    return sha256_of_arrays(dict(sorted(arrays.items())), json.dumps(meta, sort_keys=True).encode())


def save_run(file: Path, arrays: dict[str, np.ndarray], meta: dict) -> Path:
    """Write a finished run. `meta` is JSON; a checksum over everything goes in with it."""
    text = json.dumps(meta | {"checksum": _digest(arrays, meta)}, sort_keys=True)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays, meta=np.frombuffer(text.encode(), np.uint8))
    if buffer.tell() > MAX_BYTES:
        raise FedlabError(
            f"the run would take {buffer.tell()} bytes in the store, more than {MAX_BYTES}; evaluate less often "
            "(`eval_every`) or with fewer seeds"
        )
    return write_atomic(file, buffer.getvalue())


def load_run(file: Path) -> tuple[dict[str, np.ndarray], dict] | None:
    """The arrays and the JSON of a finished run, None where there is no such file; `CorruptFileError` otherwise."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = dict(archive)
        meta = json.loads(arrays.pop("meta").tobytes())
        checksum = meta.pop("checksum")
    except (
        ValueError,
        KeyError,
        EOFError,
        OSError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise corrupt(file, f"{type(error).__name__}: {error}") from error
    if checksum != _digest(arrays, meta):
        raise corrupt(file, "its checksum does not match its content")
    return arrays, meta


def save_tree(file: Path, tree: dict) -> Path:
    """Write a dictionary of arrays, numbers and text."""
    payload = serialization.msgpack_serialize(tree)
    header = _HEADER + hashlib.sha256(payload).hexdigest().encode() + b"\n"
    return write_atomic(file, header + payload)


def load_tree(file: Path) -> dict | None:
    """The dictionary that `save_tree` wrote, None where there is no such file; `CorruptFileError` otherwise."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    header, _, payload = content.partition(b"\n")
    if header != _HEADER + hashlib.sha256(payload).hexdigest().encode():
        raise corrupt(file, "its checksum does not match its content")
    return serialization.msgpack_restore(payload)


def pack(tree) -> dict[str, np.ndarray]:
    """The leaves of a pytree (arrays, PRNG keys too) as numpy arrays by their number."""

    def to_numpy(leaf):
        return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)

    return {str(index): to_numpy(leaf) for index, leaf in enumerate(jax.tree.leaves(tree))}


def unpack(file: Path, leaves: dict[str, np.ndarray], like):
    """The pytree of `like`'s structure, shapes and types that `pack` took apart; `CorruptFileError` if they differ."""
    shapes, structure = jax.tree.flatten(like)
    found = [leaves[str(index)] for index in range(len(leaves))]
    raw = [jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf for leaf in shapes]
    if [(a.shape, a.dtype) for a in found] != [(b.shape, b.dtype) for b in raw]:
        raise corrupt(file, "it holds arrays of other shapes than this run's")
    rebuilt = [
        jax.random.wrap_key_data(array) if _is_key(leaf) else array for array, leaf in zip(found, shapes, strict=True)
    ]
    return jax.tree.unflatten(structure, rebuilt)


def _is_key(leaf) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
