"""JupyterLab on the notebooks. Its root is the project's: pictures that lie beside `notebooks/` are shown only then."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from fedlab_lite.util import InputError, files


def command(options: Sequence[str]) -> list[str]:
    """The command that starts JupyterLab with the notebooks open; `options` are JupyterLab's own.

    Raises `InputError` outside a checkout, and without JupyterLab.
    """
    if not files.is_checkout():
        raise InputError("an installed package has no notebooks; clone the project, and start it there")
    if find_spec("jupyterlab") is None:
        raise InputError("this needs JupyterLab: pip install 'fedlab-lite[notebooks]'")
    where = [f"--ServerApp.root_dir={files.project_root()}", "--LabApp.default_url=/lab/tree/notebooks"]
    return [sys.executable, "-m", "jupyterlab", *where, *options]
