"""Words that readers outside the project cannot know do not appear in docstrings, comments, pages and notebooks."""

import ast
import io
import json
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("papers", "plots", "analysis", "cli.py", "__main__.py")  # reworded so far; to grow to the whole package
NOTEBOOKS = ("learn", "fedeq", "fl_deq", "fedf_admm", "fedreco", "deprl")
OURS = ("the mend", "how dear", "to and fro", "stands still", "drawers")
IN_FIRST_LINES = (*OURS, "nobody", "everybody")
IN_NOTEBOOKS = (
    *IN_FIRST_LINES,
    "the echo",
    "press its key",
    "excused by",
    "classes a client",
    "the constant answer",  # the majority baseline
    "stand still",
    "clients a round",
    "rows a local step",
    "steps a round",
    "a seed each",
)
DRAWN_BEFORE = ("tab02_generalization", "tab08_generalization_ps", "fig10_memory_time")  # code has the older words


def files() -> list[Path]:
    places = [ROOT / "fedlab_lite" / room for room in ROOMS]
    return sorted(file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place]))


def notebooks() -> list[Path]:
    return sorted(file for folder in NOTEBOOKS for file in (ROOT / "notebooks" / folder).glob("*.ipynb"))


def paragraphs(file: Path) -> list[str]:
    """The paragraphs of a notebook's text, without the part that is generated from its result."""
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "markdown"]
    texts = ["".join(cell["source"]) for cell in cells]
    return [paragraph for text in texts for paragraph in text.rpartition("<!-- result:end -->")[2].split("\n\n")]


def code_cells(file: Path) -> list[str]:
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell["source"]) for cell in cells]


def docstrings(code: str) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(code)) if isinstance(node, kinds))
    return [text for text in found if text]


def comments(code: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def said(words: tuple[str, ...], texts: list[str]) -> list[str]:
    """The words that some text has, also across a line break, with the text's beginning."""
    plain = [" ".join(text.lower().split()) for text in texts]
    return [f"{word!r} in {text[:80]!r}" for text in plain for word in words if word in text]


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_code_is_described_in_plain_words(file):
    code = file.read_text()
    firsts = [text.splitlines()[0] for text in docstrings(code)]
    assert not said(OURS, [*docstrings(code), *comments(code)]) + said(IN_FIRST_LINES, firsts)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_pages_are_written_in_plain_words(name):
    assert not said(OURS, (ROOT / name).read_text().split("\n\n"))


@pytest.mark.parametrize("file", notebooks(), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_notebooks_are_written_in_plain_words(file):
    assert not said(IN_NOTEBOOKS, paragraphs(file))
    if file.stem not in DRAWN_BEFORE:
        assert not said((*IN_NOTEBOOKS, "constant answer"), [*paragraphs(file), *code_cells(file)])


@pytest.mark.parametrize("folder", NOTEBOOKS)
def test_each_folder_has_notebooks(folder):
    assert any(file.parent.name == folder for file in notebooks())


def test_a_private_word_is_found():
    assert said(OURS, ["It goes to and\n    fro."]) == ["'to and fro' in 'it goes to and fro.'"]
    assert docstrings('def f():\n    """Nobody."""') == ["Nobody."]
    assert comments("x = 1  # how dear") == ["# how dear"]
