"""JupyterLab on the notebooks. Its root is the project's: pictures that lie beside `notebooks/` are shown only then."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn

from fedlab_lite.util import InputError, files
from fedlab_lite.util.text import say


def start(options: Sequence[str]) -> NoReturn:
    """Become JupyterLab, with the notebooks open; `options` are its own.

    Where the port is in use, JupyterLab takes the next one. It prints its address, also where there is no browser.

    Raises `InputError` outside a checkout, and without JupyterLab.
    """
    if not files.is_checkout():
        raise InputError(files.CLONE)
    if find_spec("jupyterlab") is None:
        raise InputError("this needs JupyterLab: pip install 'fedlab-lite[notebooks]'")
    if not os.access(files.notebooks_dir(), os.W_OK):
        copy = "copy the project to a folder in which you may write"
        say(f"{files.notebooks_dir()} is read-only: neither notebooks nor figures can be saved; {copy}", error=True)
    where = [f"--ServerApp.root_dir={files.project_root()}", "--LabApp.default_url=/lab/tree/notebooks"]
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *where, *options])  # noqa: S606  (arguments, no shell)
