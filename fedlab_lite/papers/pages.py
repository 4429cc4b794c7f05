"""The generated files of a checkout, wholly or in part: pages of results, tables of READMEs, notebooks' first cells."""

import json
import re
from pathlib import Path

from fedlab_lite.papers import first_cells, gallery, notebooks, report, results
from fedlab_lite.papers import presets as papers
from fedlab_lite.papers.first_cells import refresh
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.report import Result
from fedlab_lite.util import InputError, files

# A preset's row in a notebook's first cell: what stands before its time, the time, what is added to it, the hardware.
_ROW = re.compile(r"^(\| (quick|laptop) \|.*\| )([^|,\n]+)((?:,[^|\n]*)? \|[^|\n]*\|)$", re.MULTILINE)


def _with_result(file: Path, item: Item, result: Result | None) -> str:
    """The notebook with its committed result, and with the times that `fedlab list` shows, in its first cell."""
    content = files.read_notebook(file)
    text = refresh(notebooks.source(content["cells"][0]), "result", first_cells.committed(item, result))
    text = _ROW.sub(lambda row: f"{row[1]}{report.time_of(item, row[2])}{row[4]}", text)
    content["cells"][0]["source"] = text.splitlines(keepends=True)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def generated() -> dict[Path, str]:
    """The up-to-date content of each file that is generated, wholly or in part."""
    found = results.committed(papers.ALL)
    readme, guide = files.project_root() / "README.md", files.notebooks_dir() / "README.md"
    course = refresh(guide.read_text(encoding="utf-8"), "course", report.course_markdown())
    said = {
        readme: refresh(readme.read_text(encoding="utf-8"), "papers", report.papers_markdown(found)),
        guide: refresh(course, "notebooks", report.notebooks_markdown(found)),
    }
    if found:
        said[files.figures_dir() / "README.md"] = gallery.markdown(found)
    for paper in papers.PAPERS:
        if papers.load(paper).get("items"):
            said[files.figures_dir() / paper / "README.md"] = report.page(paper, found)
    for item in papers.items(of=papers.ALL):
        if "claim" not in papers.item(*item):
            continue  # a lesson tests no claim
        said[notebooks.path(item)] = _with_result(notebooks.path(item), item, found.get(item))
    return said


def write() -> list[Path]:
    """Bring all generated files up to date; returns those that changed. Raises `InputError` outside a checkout."""
    if not files.is_checkout():
        raise InputError(f"the pages and READMEs can be written only in a checkout; {files.CLONE}")
    wanted = {file: text.encode() for file, text in generated().items()}
    stale = {file: text for file, text in wanted.items() if not file.exists() or file.read_bytes() != text}
    return [files.write_atomic(file, text) for file, text in stale.items()]
