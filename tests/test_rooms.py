"""The rooms of the package: imports go one way, files are short, and few things lie at the top."""

import ast
from pathlib import Path

import pytest

import fedlab_lite

PACKAGE = Path(fedlab_lite.__file__).parent
ROOMS = ("cli", "papers", "plots", "analysis", "runs", "algorithms", "engine", "nn", "deq", "data", "util")
FILES = sorted(PACKAGE.rglob("*.py"))
LINES = 300


def room(place):
    """Where a file or a module lies: one of `ROOMS`, or '' for the top of the package."""
    first = place.partition(".")[0]
    return first if first in ROOMS else ""


def module(file):
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(text):
    """Modules of the package that a source imports, also inside functions, without the package's name: line, module."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = whole if node.module == "fedlab_lite" else [node.module]
        else:
            continue
        package = [name for name in names if name.split(".")[0] == "fedlab_lite"]
        found += [(node.lineno, name.partition(".")[2]) for name in package]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_one_way(file):
    here = room(module(file))
    if not here:  # the public API and `__main__` stand above all rooms
        return
    for line, name in imported(file.read_text()):
        if not name:
            allowed = {node.attr for node in ast.walk(ast.parse(file.read_text())) if _of_the_package(node)}
            assert allowed <= {"__version__"}, f"line {line}: the public API is for those outside"
            continue
        assert room(name), f"line {line}: {name} lies in no room"
        assert ROOMS.index(room(name)) >= ROOMS.index(here), f"line {line}: {here} imports {name}, which is above it"


def _of_the_package(node):
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fedlab_lite"


def test_no_circle():
    """Nor one inside a room, among imports at the top of files."""
    names = {module(file): file for file in FILES}
    edges = {}
    for name, file in names.items():
        top = "\n".join(
            ast.unparse(node)
            for node in ast.parse(file.read_text()).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        inside = {target for _, target in imported(top)}
        own = {target for target in inside if target in names and target != room(name)}
        edges[name] = {target for target in own if name and room(target) == room(name)}
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for target in sorted(edges[name]):
            visit(target)
        path.pop()
        done.add(name)

    for name in edges:
        visit(name)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n    from fedlab_lite.runs import run", [(2, "runs")]),
        ("import fedlab_lite.plots.style as s", [(1, "plots.style")]),
        ("from fedlab_lite import papers, data", [(1, "papers"), (1, "data")]),
        ("import fedlab_lite, jax", [(1, "")]),
        ("from fedlab_liter import x", []),
    ],
)
def test_what_counts_as_an_import(text, found):
    assert imported(text) == found


def test_few_things_at_the_top():
    entries = [entry.name for entry in PACKAGE.iterdir() if entry.name != "__pycache__"]
    assert len(entries) <= 14, entries
    assert {entry.partition(".")[0] for entry in entries} == {*ROOMS, "__init__", "__main__"}


def test_files_are_short():
    long = {str(file.relative_to(PACKAGE)) for file in FILES if len(file.read_text().splitlines()) >= LINES}
    assert long == set(), f"{LINES} lines or more: give what is new a file of its own"
