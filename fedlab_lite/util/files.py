"""Paths of the project, and atomic writes that never leave a partial file.

| variable       | default                       | holds                                                  |
| ---            | ---                           | ---                                                    |
| FEDLAB_CACHE   | the user's cache folder       | embedded data, compiled programs                       |
| FEDLAB_DATA    | $FEDLAB_CACHE/data            | real data sets: official archives or `<name>.npz`      |
| FEDLAB_RUNS    | $FEDLAB_CACHE/runs            | the run store: finished runs and checkpoints           |
| FEDLAB_FIGURES | figures/ of the checkout      | committed results: `<paper>/<stem>.svg .png .json`     |

Without a checkout (an installed package), figures and pages go to the working directory.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlab_lite.util.errors import CorruptFileError, InputError, OutputError
from fedlab_lite.util.forms import ANY, check_form

if TYPE_CHECKING:
    import numpy as np

URL = "https://github.com/fedlab-lite/fedlab-lite"
CLONE = f"notebooks and figures are not in the installed package; they are in the project: git clone {URL}"


def is_checkout() -> bool:
    """Whether this package runs from a checkout, with notebooks and figures beside it."""
    return (Path(__file__).resolve().parents[2] / "pyproject.toml").is_file()


def project_root() -> Path:
    """The checkout with `notebooks/` and `figures/`; the working directory if the package is installed."""
    return Path(__file__).resolve().parents[2] if is_checkout() else Path.cwd()


def expanded(path: str | Path) -> Path:
    """The path with the user's home for `~`. Raises `InputError` where there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{path}: this user has no home folder here ({error}); give a path without ~") from error


def _folder(variable: str, default: Callable[[], Path]) -> Path:
    value = os.environ.get(variable)
    return expanded(value) if value else default()


def cache_dir() -> Path:
    return _folder("FEDLAB_CACHE", lambda: _folder("XDG_CACHE_HOME", _user_cache) / "fedlab_lite")


def _user_cache() -> Path:
    try:
        return Path.home() / ".cache"
    except RuntimeError as error:
        raise InputError(f"this user has no home folder ({error}); set FEDLAB_CACHE to a folder for files") from error


def data_dir() -> Path:
    return _folder("FEDLAB_DATA", lambda: cache_dir() / "data")


def runs_dir() -> Path:
    return _folder("FEDLAB_RUNS", lambda: cache_dir() / "runs")


def figures_dir() -> Path:
    return _folder("FEDLAB_FIGURES", lambda: project_root() / "figures")


def drafts_dir() -> Path:
    """The folder of results that are not committed: `<preset>/<paper>/`."""
    return figures_dir() / "drafts" if os.environ.get("FEDLAB_FIGURES") else project_root() / "build" / "figures"


def notebooks_dir() -> Path:
    return project_root() / "notebooks"


def or_clone(advice: str) -> str:
    """The advice for somebody who has the notebooks, or else how to get them."""
    return advice if notebooks_dir().is_dir() else CLONE


def rendered_dir() -> Path:
    """The folder of executed notebooks: `<preset>/<paper>/<stem>.ipynb`."""
    return project_root() / "build" / "notebooks"


def sha256_of_arrays(arrays: "Mapping[str, np.ndarray]", first: bytes = b"") -> str:
    """SHA-256 (hex) of `first` and of the arrays' names, types, shapes and contents, in the mapping's order."""
    import numpy as np  # here, because the command line imports this module and must start fast

    digest = hashlib.sha256(first)
    for name, array in arrays.items():
        shape = array.shape or (1,)  # a scalar is hashed like an array of length 1
        digest.update(f"{name} {array.dtype.str} {shape}".encode())
        for block in array.blocks() if hasattr(array, "blocks") else [array]:  # `Rows`: one client after the other
            digest.update(np.ascontiguousarray(block))
    return digest.hexdigest()


def write_atomic(path: Path, content: bytes) -> Path:
    """Write `content` to a temporary file beside `path`, flush it to disk, then rename it to `path`.

    A reader sees the old file or the new one, never a part. Two processes may write the same path at once. A new file
    has the permissions that the user's umask leaves, and one that is replaced keeps its own. A link stays, and the file
    that it names is written.
    Raises `OutputError` (and removes the temporary file) when the folder is read-only or the disk is full.
    """
    path = Path(path)
    temporary = None
    try:
        target = path.resolve() if path.is_symlink() else path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(target)
        with open(temporary, "xb") as file, _locked(file.fileno()):  # the lock tells `sweep` that somebody is writing
            if target.is_file():
                shutil.copymode(target, temporary)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads back to itself
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    return path


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def _locked(handle: int, wait: bool = True) -> Iterator[None]:
    """Hold the lock of an open file or folder until it is closed.

    Raises `BlockingIOError` if another process holds it and this one may not wait. There is no lock to hold on a file
    system without locks, and on a system without `fcntl`.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        pass
    yield


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Let one process at a time in: others that ask for the same folder wait.

    Example:
      >>> folder = Path(tempfile.mkdtemp())
      >>> with only_one(folder):
      ...     (folder / "a").write_text("alone", encoding="utf-8")
      5
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise cannot_write(folder / "…", error) from error
    try:
        with _locked(handle):
            yield
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove temporary files of processes that were killed while writing.

    They are at least an hour old by this machine's clock, and no living process holds their lock.
    """
    for file in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > 3600:
                with open(file, "rb") as left, _locked(left.fileno(), wait=False):
                    file.unlink()


def read_json(file: Path) -> Any:
    """The content of a JSON file. Raises `CorruptFileError` for other content; a missing file is an `OSError`.

    Example:
      >>> file = Path(tempfile.mkdtemp()) / "a.json"
      >>> _ = write_atomic(file, b"[1, 2]")
      >>> read_json(file)
      [1, 2]
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also of bytes that are not UTF-8
        raise CorruptFileError(f"{file} is not the JSON that it should be ({error}); restore or remove it") from error


def read_notebook(file: Path) -> dict[str, Any]:
    """The content of a notebook. Raises `CorruptFileError` for other content; a missing file is an `OSError`."""
    content = read_json(file)
    try:
        check_form("it", content, {"metadata": dict, "cells": [{"cell_type": str, "source": ANY, "metadata": dict}]})
        check_form("papermill's part", content["metadata"].get("papermill", {}), dict)
        for cell in content["cells"]:
            check_form("a cell's text", "".join(cell["source"]), str)
            check_form("a cell's tags", cell["metadata"].get("tags", []), [str])
    except (InputError, TypeError) as error:
        raise CorruptFileError(f"{file} is not a notebook ({error}); restore or remove it") from error
    if not content["cells"]:
        raise CorruptFileError(f"{file} is not a notebook with cells; restore or remove it")
    return content


def write_folder(folder: Path, contents: "Mapping[str, bytes]", replace: bool = False) -> Path:
    """Write a new folder of files: to a temporary folder beside it, which is then renamed. It is whole or not there.

    Args:
      replace: whether to replace a folder of files with these names and no others.

    Raises `InputError` where the folder exists and is not empty, and `OutputError` where it cannot be written.
    """
    folder = expanded(folder).resolve()
    there = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if folder.exists() and (not folder.is_dir() or (there and not (replace and there == set(contents)))):
        advice = "choose another one, move it away, or pass overwrite=True where it holds a saved model alone"
        raise InputError(f"{folder} exists already and is not an empty folder; {advice}")
    temporary, aside = _temporary(folder), _temporary(folder)
    try:
        temporary.mkdir(parents=True)
        for name, content in contents.items():
            write_atomic(temporary / name, content)
        if there:
            os.replace(folder, aside)
        os.replace(temporary, folder)
    except OSError as error:
        raise error if isinstance(error, OutputError) else cannot_write(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # renamed, it is no longer there
        if folder.exists():
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def cannot_write(path: Path, error: Exception) -> OutputError:
    """The error for a file that could not be written; its message says what to do."""
    blocking = next((folder for folder in path.parents if folder.exists() and not folder.is_dir()), None)
    why = f"{blocking} is a file, not a folder" if blocking else getattr(error, "strerror", None) or str(error)
    own = ""
    for variable, folder in {"FEDLAB_FIGURES": figures_dir, "FEDLAB_DATA": data_dir, "FEDLAB_RUNS": runs_dir}.items():
        with contextlib.suppress(InputError):
            own = f", or set {variable} to another folder" if path.is_relative_to(folder()) else own
    return OutputError(
        f"cannot write {path}: {why}. Files that were there before are unchanged; "
        f"free some space, make {path.parent} writable{own}."
    )


def check_writable(folder: Path) -> None:
    """Raise `OutputError` if `folder` cannot be written to, before a long run begins."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".", suffix=".tmp", dir=folder) as file:
            file.write(bytes(2**16))
            file.flush()
    except OSError as error:
        raise cannot_write(folder / "…", error) from error
