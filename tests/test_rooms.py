"""The house: which rooms the package has, and that imports go one way."""

import ast
from pathlib import Path

import pytest

import fedlab_lite

PACKAGE = Path(fedlab_lite.__file__).parent
ROOMS = ("cli", "papers", "plots", "analysis", "runs", "algorithms", "engine", "nn", "deq", "data", "util")  # downwards
MOST_LINES = 300
LONGER = {  # files that are still to be split, and how long each may be until then
    "data/container.py": 310,
    "data/sources.py": 365,
    "engine/graphs.py": 375,
    "engine/problem.py": 310,
    "engine/training.py": 365,
    "papers/verdicts.py": 340,
    "plots/style.py": 330,
    "cli.py": 335,
    "runs/runner.py": 340,
}


def files() -> list[Path]:
    return sorted(file for file in PACKAGE.rglob("*.py") if file.parent != PACKAGE or file.stem in ROOMS)


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(file: Path) -> set[str]:
    """The rooms that a file imports from, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fedlab_lite":
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedlab_lite."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {each.name.split(".")[1] for each in node.names if each.name.startswith("fedlab_lite.")}
    return found


def test_rooms_are_those_of_the_list():
    top = {entry.stem for entry in PACKAGE.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()}
    assert top == {*ROOMS, "__init__", "__main__"}
    assert len(top) <= 14
    for room in ROOMS[1:]:
        assert ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())), (
            f"{room} does not say what it is"
        )


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_downwards(file):
    room = room_of(file)
    unknown = imported(file) - {*ROOMS, "__version__"}
    assert not unknown, f"{unknown} are no rooms"
    above = [other for other in imported(file) if other in ROOMS and ROOMS.index(other) < ROOMS.index(room)]
    assert not above, f"{room} imports {above}, which are above it"


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_files_are_short(file):
    name = str(file.relative_to(PACKAGE))
    lines = len(file.read_text().splitlines())
    assert lines <= LONGER.get(name, MOST_LINES)
    assert name not in LONGER or lines > MOST_LINES, f"{name} is short enough now: take it off the list"
