"""The book: which page a notebook becomes, and the site that Sphinx makes of three."""

import base64

import nbformat
import pytest
from helpers import recorded

from fedlab_lite.cli import main
from fedlab_lite.papers import Item, book, presets, report
from fedlab_lite.util import InputError, files

CHAPTER = Item("learn", "01_first_steps")
FIGURE = Item("fedeq", "fig04_mlp_vs_deq_mlp")
TABLE = Item("fedf_admm", "tab03_cnn")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


SCRIPT = "<script>alert(1)</script> | `x` {raw}`<img src=x onerror=alert(2)>` $y$"
SAID, ONE = {"outcome": "agrees", "reason": SCRIPT}, {"mean": 1.0, "std": 0.0, "n": 1}


def write(item, title, *, preset=None, outputs=(), failed=False):
    """A notebook of a title cell, a folded and an open cell; rendered at `preset`, or as it is committed."""
    cells = [
        nbformat.v4.new_markdown_cell(f"# {title}\n\n![it](../../figures/{item.paper}/{item.stem}.png)\n\n$a^2$"),
        nbformat.v4.new_code_cell("draw()", metadata={"tags": ["hide-input"]}, outputs=list(outputs)),
        nbformat.v4.new_code_cell("open_cell()"),
    ]
    metadata = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    metadata |= {"papermill": {"exception": True}} if failed else {}
    folder = files.rendered_dir() / preset if preset else files.notebooks_dir()
    file = folder / item.paper / f"{item.stem}.ipynb"
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), file)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a chapter, a figure that has been rendered, with its picture, and a table that has not."""
    result = recorded(FIGURE, "quick", reason=SCRIPT, data_source=SCRIPT, also={SCRIPT: SAID}, metrics={SCRIPT: ONE})
    page = report.page("fedeq", {FIGURE: result})
    monkeypatch.setattr(files, "project_root", lambda: tmp_path)
    monkeypatch.setenv("FEDLAB_FIGURES", str(tmp_path / "figures"))
    (tmp_path / "README.md").write_text(f"# The front page\n\n[a notebook](notebooks/{FIGURE}.ipynb)\n")
    write(CHAPTER, "First steps")
    write(TABLE, "Table III: layers")
    write(FIGURE, "Figure 4: two networks")
    said = nbformat.v4.new_output("stream", name="stdout", text="it was run\n")
    write(FIGURE, "Figure 4, as it was", preset="quick", outputs=[said])
    picture = tmp_path / "figures" / FIGURE.paper / f"{FIGURE.stem}.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(PIXEL)
    picture.with_name("README.md").write_text(page)
    return tmp_path


def outputs(content):
    return [output["text"] for cell in content["cells"] for output in cell.get("outputs", ())]


def test_a_page_is_the_largest_preset_that_ran(checkout):
    assert outputs(book.page(TABLE)) == []
    assert "it was run" in str(outputs(book.page(FIGURE)))
    said = nbformat.v4.new_output("stream", name="stdout", text="at the laptop\n")
    write(FIGURE, "Figure 4", preset="laptop", outputs=[said])
    assert "at the laptop" in str(outputs(book.page(FIGURE)))
    write(FIGURE, "Figure 4", preset="paper", failed=True)
    assert "at the laptop" in str(outputs(book.page(FIGURE)))


def test_parts_are_the_course_and_the_papers_that_have_notebooks(checkout):
    assert book.chapters() == {"learn": [CHAPTER], "fedeq": [FIGURE], "fedf_admm": [TABLE]}
    assert [*book.chapters()] == [presets.COURSE, *(paper for paper in presets.PAPERS if paper in book.chapters())]
    assert book.chapters(["fig04", "learn"]) == {"learn": [CHAPTER], "fedeq": [FIGURE]}
    with pytest.raises(InputError, match="no notebook for tab99"):
        book.chapters(["tab99"])


@pytest.mark.slow
def test_the_site(checkout, capfd):
    assert main(["book", "--output", str(checkout / "site")]) == 0
    said = capfd.readouterr()
    assert str(checkout / "site" / "index.html") in said.out
    assert "ERROR" not in said.err
    front = (checkout / "site" / "index.html").read_text()
    for part in ("The front page", "The course", "FeDEQ", "Figure 4", "Table III", f"notebooks/{FIGURE}.html"):
        assert part in front
    assert "FL-DEQ" not in front  # a paper without notebooks here
    page = (checkout / "site" / "notebooks" / f"{FIGURE}.html").read_text()
    assert "<title>Figure 4: two networks" in page  # as committed, though the rest is as rendered
    assert "it was run" in page
    folded = page.partition("<details")[2].partition("</details>")[0]
    assert "draw" in folded
    assert "open_cell" not in folded
    assert "open_cell" in page
    assert f'src="../../_images/{FIGURE.stem}.png"' in page
    assert (checkout / "site" / "_images" / f"{FIGURE.stem}.png").read_bytes() == PIXEL
    assert "cdn.jsdelivr.net/npm/mathjax" not in page  # formulas need no network
    results = (checkout / "site" / "figures" / "fedeq" / "README.html").read_text()
    assert results.count("&lt;script&gt;alert(1)&lt;/script&gt; | `x` {raw}`&lt;img src=x") == 5
    assert "alert(1)</script>" not in results
    assert "<img src=x" not in results
    assert (checkout / "site" / "notebooks" / f"{TABLE}.html").exists()
    assert (checkout / "site" / "notebooks" / f"{CHAPTER}.html").exists()


def test_missing_packages_are_named_with_their_extra(checkout, monkeypatch, capsys):
    monkeypatch.setattr(book, "find_spec", lambda name: None if name == "myst_nb" else name)
    assert main(["book"]) == 2
    assert "the book needs myst_nb: pip install 'fedlab-lite[book]'" in capsys.readouterr().err
