"""The book: which page a notebook becomes, what it says of its run, and the site that Sphinx makes of three."""

import base64
import json

import nbformat
import pytest
from helpers import recorded

import fedlab_lite as fl
from fedlab_lite.cli import main
from fedlab_lite.papers import Item, book, book_pages, presets, report
from fedlab_lite.util import InputError, files

CHAPTER = Item("learn", "01_first_steps")
FIGURE = Item("fedeq", "fig04_mlp_vs_deq_mlp")
TABLE = Item("fedf_admm", "tab03_cnn")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


SCRIPT = "<script>alert(1)</script> | `x` {raw}`<img src=x onerror=alert(2)>` $y$"
SAID, ONE = {"outcome": "agrees", "reason": SCRIPT}, {"mean": 1.0, "std": 0.0, "n": 1}


def write(item, title, *, preset=None, outputs=(), failed=False, **given):
    """A notebook of a title cell, a folded and an open cell; rendered at `preset`, or as it is committed."""
    cells = [
        nbformat.v4.new_markdown_cell(f"# {title}\n\n![it](../../figures/{item}.png)\n\nIt is\n$$a^2$$\nbig."),
        nbformat.v4.new_code_cell("draw()", metadata={"tags": ["hide-input"]}, outputs=list(outputs)),
        nbformat.v4.new_code_cell("open_cell()"),
    ]
    metadata = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    ran = {"exception": failed, "parameters": given | {"preset": preset}, "input_path": str(item.notebook)}
    metadata |= {"papermill": ran} if preset else {}
    folder = files.rendered_dir() / preset if preset else files.notebooks_dir()
    file = folder / item.paper / f"{item.stem}.ipynb"
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), file)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a chapter, a figure that has been rendered, with its picture, and a table that has not."""
    result = recorded(FIGURE, "quick", reason=SCRIPT, data_source=SCRIPT, also={SCRIPT: SAID}, metrics={SCRIPT: ONE})
    results = report.page("fedeq", {FIGURE: result})
    monkeypatch.setattr(files, "project_root", lambda: tmp_path)
    monkeypatch.setenv("FEDLAB_FIGURES", str(tmp_path / "figures"))
    (tmp_path / "CONTRIBUTING.md").write_text("# How to\n")
    (tmp_path / "README.md").write_text(f"# The front page\n\n[a notebook](notebooks/{FIGURE}.ipynb)\n")
    write(CHAPTER, "First steps")
    write(TABLE, "Table III: layers")
    write(FIGURE, "Figure 4: two networks")
    said = nbformat.v4.new_output("stream", name="stdout", text="it was run\n")
    write(FIGURE, "Figure 4, as it was", preset="quick", outputs=[said])
    for item in (CHAPTER, TABLE, FIGURE):
        picture = tmp_path / "figures" / item.paper / f"{item.stem}.png"
        picture.parent.mkdir(parents=True)
        picture.write_bytes(PIXEL)
    picture.with_name("README.md").write_text(results)
    return tmp_path


def outputs(content):
    return [output["text"] for cell in content["cells"] for output in cell.get("outputs", ())]


def test_a_page_is_the_largest_preset_that_ran(checkout):
    assert outputs(book_pages.page(TABLE)) == []
    assert "it was run" in str(outputs(book_pages.page(FIGURE)))
    said = nbformat.v4.new_output("stream", name="stdout", text="at the laptop\n")
    write(FIGURE, "Figure 4", preset="laptop", outputs=[said])
    assert "at the laptop" in str(outputs(book_pages.page(FIGURE)))
    write(FIGURE, "Figure 4", preset="paper", failed=True)
    assert "at the laptop" in str(outputs(book_pages.page(FIGURE)))


def first_cell(item):
    return book_pages.notebooks.source(book_pages.page(item)["cells"][0])


def test_a_page_says_when_it_was_not_run(checkout, monkeypatch):
    assert "was not run where the book was built" in first_cell(TABLE)
    assert f"`fedlab run {TABLE}` runs it" in first_cell(TABLE)
    monkeypatch.setattr(book_pages.results, "read_result", lambda file: {"preset": "laptop"})
    assert "The pictures here are of the committed result, made at `laptop`" in first_cell(TABLE)


def test_a_page_says_how_its_run_differs_from_the_committed_one(checkout, monkeypatch):
    monkeypatch.setattr(book_pages.notebooks, "changed", lambda item, preset, values: values)
    monkeypatch.setattr(book_pages.results, "read_result", lambda file: {"preset": "laptop"})
    write(FIGURE, "Figure 4", preset="laptop")
    assert "note" not in first_cell(FIGURE)
    write(FIGURE, "Figure 4", preset="laptop", rho=0.1, seeds=[0, 1])
    said = "The outputs below are of a run at `laptop` with rho = 0.1, seeds = 0+1. "
    assert f"{said}The verdict above is of the committed run, at `laptop`." in first_cell(FIGURE)
    monkeypatch.setattr(book_pages.results, "read_result", lambda file: {"preset": "paper"})
    write(FIGURE, "Figure 4", preset="laptop")
    assert "a run at `laptop`. The verdict above is of the committed run, at `paper`." in first_cell(FIGURE)


def test_a_parameter_in_a_note_is_text(checkout, monkeypatch):
    monkeypatch.setattr(book_pages.notebooks, "changed", lambda item, preset, values: values)
    write(FIGURE, "Figure 4", preset="laptop", dataset="<script>``` **x**")
    assert "with dataset = &lt;script&gt;\\`\\`\\` \\*\\*x\\*\\*." in first_cell(FIGURE)


def test_a_page_that_was_not_run_shows_the_committed_picture_where_it_is_saved(checkout, monkeypatch):
    content = json.loads(TABLE.notebook.read_text())
    content["cells"][1]["source"] = "fl.papers.save_figure(fig)"
    TABLE.notebook.write_text(json.dumps(content))
    monkeypatch.setattr(book_pages.results, "read_result", lambda file: {"preset": "laptop"})
    assert all("id" in cell for cell in book_pages.page(TABLE)["cells"])  # else nbformat warns
    shown = [cell["source"] for cell in book_pages.page(TABLE)["cells"]]
    assert "fl.papers.save_figure(fig)" in shown[1]
    assert f"(../../figures/{TABLE}.png)" in shown[2]


def test_a_page_has_no_paths_of_the_machine(checkout):
    home = book_pages.Path.home()
    printed = f"{checkout}/build/figures/x.svg and {home}/data; {checkout}, {home} and {home}er"
    write(FIGURE, "Figure 4", preset="laptop", outputs=[nbformat.v4.new_output("stream", name="stdout", text=printed)])
    page = json.dumps(book_pages.page(FIGURE))
    assert f"build/figures/x.svg and ~/data; ., ~ and {home}er" in page
    assert str(checkout) not in page


def test_the_reference_has_every_public_name(tmp_path):
    pages = book_pages.write_reference(tmp_path / "api")
    text = {page: (tmp_path / "api" / f"{page}.md").read_text() for page in pages}
    for name in fl.__all__:
        assert name in pages or f":: fedlab_lite.{name}" in text["fl"]
    assert ":: fedlab_lite.engine.train\n" not in text["engine"]  # once only
    assert ":: fedlab_lite.engine.local_train\n" in text["engine"]
    assert "autoclass:: fedlab_lite.algorithms.FedAvg(lr=" in text["algorithms"]
    assert "| `rho` | `0.01` | rho, penalty on theta_i - theta |" in text["algorithms"]


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
    assert "WARNING" not in said.err
    assert 'id="fedlab_lite.Problem"' in (checkout / "site" / "api" / "fl.html").read_text()
    front = (checkout / "site" / "index.html").read_text()
    titles = [presets.item(*item)["title"].partition(",")[0] for item in (FIGURE, TABLE)]  # in the side bar
    for part in ("The front page", "The course", "FeDEQ", f"notebooks/{FIGURE}.html", "How to contribute", *titles):
        assert part in front
    assert "FL-DEQ" not in front  # a paper without notebooks here
    page = (checkout / "site" / "notebooks" / f"{FIGURE}.html").read_text()
    assert "<title>Figure 4: two networks" in page  # as committed, though the rest is as rendered
    assert "it was run" in page
    assert "Show the source" in page
    assert r"\[a^2\]" in page
    folded = page.partition("<article")[2].partition("<details")[2].partition("</details>")[0]
    assert "draw" in folded
    assert "open_cell" not in folded
    assert "open_cell" in page
    assert f'src="../../_images/{FIGURE.stem}.png"' in page
    assert (checkout / "site" / "_images" / f"{FIGURE.stem}.png").read_bytes() == PIXEL
    assert "Author name not set" not in page
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
