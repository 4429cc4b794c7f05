"""The public API: names that load, an import without side effects, examples, and notebooks that need no more."""

import inspect
import json
import re
import subprocess
import sys

import pytest

import fedlab_lite as fl
from fedlab_lite.util import files

NOTEBOOKS = sorted(files.notebooks_dir().glob("*/*.ipynb"))


@pytest.mark.parametrize("name", fl.__all__)
def test_every_name_loads(name):
    assert getattr(fl, name) is not None
    assert name in dir(fl)


def test_all_is_what_there_is():
    assert len(set(fl.__all__)) == len(fl.__all__)
    assert fl.History is fl.engine.History


@pytest.mark.parametrize("name", fl.__all__)
def test_every_class_and_function_has_an_example(name):
    public = getattr(fl, name)
    text = inspect.getdoc(public)
    assert text, name
    if not inspect.ismodule(public):
        assert ">>>" in text or "Example" in text, f"{name}: what does a call look like?"


def test_the_import_alone_loads_neither_jax_nor_matplotlib():
    """Nor does it start anything: `fl.setup()` does."""
    code = "import sys, fedlab_lite; dir(fedlab_lite); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=files.project_root()
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "fedlab_lite" in loaded
    assert not loaded & {"jax", "matplotlib", "numpy", "pandas", "flax"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trian", "no public name 'trian'; did you mean 'train'?"),
        ("Setings", "did you mean 'Settings'"),
        ("plot", "did you mean 'plots'"),
        ("FedAvg", "no public name 'FedAvg'; it is fedlab_lite.algorithms.FedAvg$"),
        ("local_train", "it is fedlab_lite.engine.local_train$"),
        ("zebra", r"no public name 'zebra'; dir\(fedlab_lite\) lists the public names"),
    ],
)
def test_unknown_names(name, words):
    with pytest.raises(AttributeError, match=words):
        getattr(fl, name)
    assert not hasattr(fl, name)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_notebooks_import_the_package_and_rooms(file):
    code = [cell["source"] for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    lines = [line for source in code for line in "".join(source).splitlines()]
    rooms = "|".join(room for room in fl.__all__ if inspect.ismodule(getattr(fl, room)))
    places = rf"({rooms})|algorithms\.parts"
    known = rf"import fedlab_lite as fl|from fedlab_lite import course|from fedlab_lite\.({places}) import .+"
    for line in lines:
        if re.match(r"\s*(from|import)\s.*\bfedlab_lite\b", line):
            assert re.fullmatch(known, line.strip()), line
