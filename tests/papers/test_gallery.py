"""Pages of pictures: each result once, what comes from a result is escaped, and a missing picture is said."""

import re

import pytest

from fedlab_lite.papers import gallery, presets, report, results
from fedlab_lite.papers.presets import Item
from fedlab_lite.util import files

ITEM = Item("fedeq", "fig04_mlp_vs_deq_mlp")


@pytest.fixture(autouse=True)
def committed(monkeypatch):
    monkeypatch.delenv("FEDLAB_FIGURES")


@pytest.fixture
def result():
    return results.committed()[ITEM]


def test_a_page_of_own_results(monkeypatch, tmp_path, result):
    monkeypatch.setattr(files, "drafts_dir", lambda: tmp_path)
    text = gallery.write_page({ITEM: result | {"preset": "quick", "reason": "a < b & c"}}).read_text()
    assert "a &lt; b &amp; c" in text
    assert "No picture" in text
    (tmp_path / "quick" / "fedeq").mkdir(parents=True)
    (tmp_path / "quick" / "fedeq" / f"{ITEM.stem}.png").write_bytes(b"")
    text = gallery.write_page({ITEM: result | {"preset": "quick"}}).read_text()
    assert f'src="quick/fedeq/{ITEM.stem}.png"' in text
    assert result["word"] in text


def test_the_gallery_has_every_committed_picture():
    found = results.committed()
    text = gallery.markdown(found)
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert sorted(pictures) == sorted(f"{item.paper}/{item.stem}.png" for item in found)
    assert all((files.figures_dir() / picture).exists() for picture in pictures)
    assert all(line.count(" | ") == gallery.ACROSS - 1 for line in text.splitlines() if "![" in line)


def test_anchors_are_those_of_the_pages_headings():
    headings = {}
    for paper in presets.PAPERS:
        page = (files.figures_dir() / paper / "README.md").read_text()
        headings[paper] = {
            re.sub(r"[^\w-]", "", line[3:].lower().replace(" ", "-")) for line in page.splitlines() if line[:3] == "## "
        }
    assert all(report.anchor(item) in headings[item.paper] for item in presets.items())


def test_a_page_has_contents_and_no_column_without_numbers(result):
    page = report.page("fedeq", {ITEM: result | {"published": []}})
    assert f"| [Figure 4](#{report.anchor(ITEM)}) | one equilibrium layer in place of" in page
    assert "| [Figure 5](#" in page
    assert page.count("| not yet run |") == len(presets.items("fedeq/*")) - 1
    assert "| number | ours |\n| --- | --- |\n| MLP | " in page
    assert "| number | ours | paper, at its own size |" in report.page("fedeq", {ITEM: result})


def test_a_floor_is_marked():
    assert report.time_of(ITEM, "quick") == "36 s"
    assert report.time_of(ITEM, "paper").startswith("≥ ")
    assert report.time_of(Item("fedeq", "tab02_parameters"), "paper") == "12 s"


def test_changed_parameters_stand_in_the_heading(monkeypatch, tmp_path, result):
    monkeypatch.setattr(files, "drafts_dir", lambda: tmp_path)
    text = gallery.write_page({ITEM: result | {"changed": {"lr": 0.1}}}).read_text()
    assert "<h2>FeDEQ, Figure 4 with lr=0.1</h2>" in text


def test_pictures_have_display_names():
    """An SVG has each text of the picture as a comment; Table I names the file of the data as well."""
    for file in sorted(files.figures_dir().glob("*/*.svg")):
        said = " ".join(re.findall(r"<!-- ([^>]*) -->", file.read_text()))
        keys = re.findall(r"\b(?:fashion_\w+|deq_\w+|cifar\w*|shakespeare|femnist|harbox)\b", said)
        assert not keys or file.stem == "tab01_datasets", f"{file.name}: {', '.join(keys)}"
