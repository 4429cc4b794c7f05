"""`import fedlab_lite as fl`: what is public, that it loads when it is used, and that notebooks use nothing deeper."""

import ast
import inspect
import json
import subprocess
import sys
from types import ModuleType

import pytest

import fedlab_lite as fl
from fedlab_lite.util import files

ROOMS = {"algorithms", "analysis", "data", "deq", "engine", "nn", "papers", "plots", "runs", "util"}
NOTEBOOKS = sorted(files.notebooks_dir().glob("*/*.ipynb"))


@pytest.mark.parametrize("name", fl.__all__)
def test_public_names_load_and_say_what_they_are(name):
    value = getattr(fl, name)
    said = inspect.getdoc(value)
    assert said
    if not isinstance(value, ModuleType) and not issubclass(value if isinstance(value, type) else object, Exception):
        assert len(said.splitlines()[0]) <= 120


def test_importing_is_light():
    code = "import sys, fedlab_lite; print([name for name in ('jax', 'numpy', 'matplotlib') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_names_are_listed():
    assert {"setup", "federated", "train", "Settings", "run", "run_all", "History", "algorithms", "plots"} <= set(
        dir(fl)
    )


def test_unknown_names_say_what_is_near():
    with pytest.raises(AttributeError, match="no public name 'fedarated'; did you mean federated"):
        _ = fl.fedarated
    with pytest.raises(AttributeError, match=r"dir\(fedlab_lite\) lists the public names"):
        _ = fl.xyzzy


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_notebooks_use_public_names_and_rooms(file):
    cells = json.loads(file.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedlab_lite"):
            _, *path = node.module.split(".")
            assert not path or path == ["algorithms", "parts"] or (len(path) == 1 and path[0] in ROOMS), node.module
            assert path or {each.name for each in node.names} <= set(fl.__all__)
        elif isinstance(node, ast.Import):
            assert all(each.name.split(".")[0] != "fedlab_lite" or each.asname == "fl" for each in node.names)
