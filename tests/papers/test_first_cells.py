"""First cells of rendered notebooks: their own picture and verdict, and links that lead where they led before."""

import pytest
from helpers import recorded

from fedlab_lite.papers import Item, first_cells
from fedlab_lite.util import files

ITEM = Item("fedeq", "fig04_mlp_vs_deq_mlp")
BLOCK = "<!-- result:begin -->\n**agrees here**\n<!-- result:end -->"
TEXT = f"# Figure 4\n\n{BLOCK}\n\n[a lesson](../learn/01.ipynb#part), [none](../no.md), $[a](b)$, [web](https://a.b/c)"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "project_root", lambda: tmp_path)
    monkeypatch.setenv("FEDLAB_FIGURES", str(tmp_path / "figures"))
    for file in ("notebooks/learn/01.ipynb", "figures/fedeq/README.md", "build/figures/a,lr=1.png"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    return tmp_path / "build" / "notebooks" / "quick" / "fedeq"


def run(folder, result, text=TEXT):
    """The texts of a rendered notebook: an error's, and its first cell."""
    cells = [{"cell_type": "markdown", "source": [each]} for each in ("An error", text)]
    content = {"cells": [*cells, {"cell_type": "code", "source": "[x](../learn/01.ipynb)"}]}
    picture = folder.parents[2] / "figures" / "a,lr=1.png"
    return [cell["source"] for cell in first_cells.as_run(content, ITEM, folder, result, picture)["cells"]]


def test_a_run_shows_its_own_picture_and_verdict(folder):
    result = recorded(ITEM, "quick", word="seen", reason="it learns", changed={"lr": 1.0})
    _, text, code = run(folder, result)
    assert "![Figure 4](../../../figures/a,lr=1.png)\n" in text
    assert "*This run*: **seen** (" in text
    assert "with lr=1.0: it learns." in text
    assert "agrees here" not in text
    assert "(../../../../figures/fedeq/README.md)" in text
    assert code == "[x](../learn/01.ipynb)"


def test_a_run_that_stopped_has_no_verdict(folder):
    _, text, _ = run(folder, None)
    assert first_cells.STOPPED in text
    assert "![" not in text
    assert "agrees here" not in text


def test_links_lead_there_and_back(folder):
    _, text, _ = run(folder, None)
    assert "[a lesson](../../../../notebooks/learn/01.ipynb#part), [none](../no.md), $[a](b)$, [web](https" in text
    content = {"cells": [{"cell_type": "markdown", "source": text}]}
    back = first_cells.moved(content, folder, ITEM.notebook.parent)["cells"][0]["source"]
    assert "[a lesson](../learn/01.ipynb#part)" in back
