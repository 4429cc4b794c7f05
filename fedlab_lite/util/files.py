"""Paths of the project, and atomic writes that never leave a partial file.

| variable       | default                       | holds                                                  |
| ---            | ---                           | ---                                                    |
| FEDLAB_CACHE   | the user's cache folder       | embedded data, compiled programs                       |
| FEDLAB_DATA    | $FEDLAB_CACHE/data            | real data sets: official archives or `<name>.npz`      |
| FEDLAB_RUNS    | $FEDLAB_CACHE/runs            | the run store: finished runs and checkpoints           |
| FEDLAB_FIGURES | figures/ of the checkout      | committed results: `<paper>/<stem>.svg .png .json`     |

Without a checkout (an installed package), figures and pages go to the working directory.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedlab_lite.util.errors import InputError, OutputError

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


def _folder(variable: str, default: Path) -> Path:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else default


def cache_dir() -> Path:
    base = _folder("XDG_CACHE_HOME", Path.home() / ".cache")
    return _folder("FEDLAB_CACHE", base / "fedlab_lite")


def data_dir() -> Path:
    return _folder("FEDLAB_DATA", cache_dir() / "data")


def runs_dir() -> Path:
    return _folder("FEDLAB_RUNS", cache_dir() / "runs")


def figures_dir() -> Path:
    return _folder("FEDLAB_FIGURES", project_root() / "figures")


def drafts_dir() -> Path:
    """The folder of results that are not committed: `<preset>/<paper>/`."""
    own = os.environ.get("FEDLAB_FIGURES")
    return Path(own).expanduser() / "drafts" if own else project_root() / "build" / "figures"


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

    A reader sees the old file or the new one, never a part. Two processes may write the same path at once.
    Raises `OutputError` (and removes the temporary file) when the folder is read-only or the disk is full.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    return path


def write_folder(folder: Path, contents: "Mapping[str, bytes]") -> Path:
    """Write a new folder of files: to a temporary folder beside it, which is then renamed. It is whole or not there.

    Raises `InputError` where the folder exists and is not empty, and `OutputError` where it cannot be written.
    """
    folder = folder.expanduser().resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists already and is not an empty folder; choose another one, or move it away")
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        for name, content in contents.items():
            write_atomic(temporary / name, content)
        temporary.chmod(0o755)
        os.replace(temporary, folder)
    except OSError as error:
        raise error if isinstance(error, OutputError) else cannot_write(folder, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)  # renamed, it is no longer there
    return folder


def cannot_write(path: Path, error: OSError) -> OutputError:
    """The error for a file that could not be written; its message says what to do."""
    blocking = next((folder for folder in path.parents if folder.exists() and not folder.is_dir()), None)
    why = f"{blocking} is a file, not a folder" if blocking else f"{error.strerror or error}"
    return OutputError(
        f"cannot write {path}: {why}. Files that were there before are unchanged; "
        f"free some space, make {path.parent} writable, or set its FEDLAB_* variable to another folder."
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
