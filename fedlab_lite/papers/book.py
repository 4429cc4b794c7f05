"""Build a static site from the rendered notebooks with Sphinx and MyST-NB; nothing is executed.

The pages in `build/book/source` are laid out as in the checkout, so links between them and to pictures stay valid.
The extra `book` installs the packages. Neither building nor reading the site needs a network.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from fedlab_lite.papers import book_pages, presets
from fedlab_lite.papers.presets import Item
from fedlab_lite.util import FedlabError, InputError, files

PACKAGES = ("sphinx", "myst_nb", "sphinx_book_theme", "sphinx-mathjax-offline")


def chapters(only: Sequence[str] | None = None) -> dict[str, list[Item]]:
    """The notebooks of each part of the book: the course first, then each paper that has notebooks.

    Args:
      only: parts of "<paper>/<stem>"; other notebooks are left out.
    """
    lessons = sorted(files.notebooks_dir().glob(f"{presets.COURSE}/*.ipynb"))
    found: dict[str, list[Item]] = {}
    for item in [*(Item(presets.COURSE, file.stem) for file in lessons), *presets.items()]:
        if item.notebook.exists() and (only is None or any(part in str(item) for part in only)):
            found.setdefault(item.paper, []).append(item)
    if not found:
        advice = files.or_clone("`fedlab list` shows all")
        raise InputError(f"no notebook for {', '.join(only or ['the book'])} in {files.notebooks_dir()}; {advice}")
    return found


def _title(item: Item) -> str:
    """The title of a notebook's page in the side bar, "Figure 4: ..."; empty if only the notebook has one."""
    return presets.load(item.paper)["items"].get(item.stem, {}).get("title", "")


def _tree(pages: Iterable[tuple[str, str]], caption: str = "") -> str:
    """A hidden table of contents of (title, page without suffix): entries of the side bar."""
    lines = [f"{title} <{name}>" if title else name for title, name in pages]
    head = ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    return "\n".join([*head, *lines, "```", ""])


def _write_contents(parts: Mapping[str, list[Item]], source: Path) -> None:
    """Write the pages that lead to others: the front page, the page of results of each paper, the guide."""
    root = files.project_root()
    trees = {paper: [(_title(item), f"/notebooks/{item}") for item in items] for paper, items in parts.items()}
    course, results = trees.pop(presets.COURSE, []), []
    for paper, entries in trees.items():
        page, about = source / "figures" / paper / "README.md", presets.load(paper)
        text = page.read_text(encoding="utf-8") if page.exists() else f"# {about['title']}\n"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text + _tree(entries), encoding="utf-8")
        results.append((about["name"], f"figures/{paper}/README"))
    pages = ("figures/README", "notebooks/README", "notebooks/your_own_data", "CONTRIBUTING", "CHANGELOG")
    for name in (f"{page}.md" for page in pages if (root / f"{page}.md").exists()):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, source / name)
    titles = ("All pictures", "All notebooks", "Your own data", "How to contribute", "Changes")
    known = [(title, page) for title, page in zip(titles, pages, strict=True) if (source / f"{page}.md").exists()]
    reference = [("", f"api/{name}") for name in book_pages.write_reference(source / "api")]
    groups = {"Start": known[:3], presets.load(presets.COURSE)["name"]: course, "Papers": results}
    groups |= {"Names of the package": reference, "Project": known[3:]}
    front = "".join(_tree(entries, caption) for caption, entries in groups.items() if entries)
    text = (root / "README.md").read_text(encoding="utf-8") + front
    (source / "index.md").write_text(text, encoding="utf-8")


def build(output: Path, only: Sequence[str] | None = None) -> Path:
    """Build the site in the folder `output`; returns its front page.

    Args:
      only: parts of "<paper>/<stem>"; other notebooks are left out.

    Raises: `InputError` without the extra `book`, or if `only` matches nothing; `FedlabError` if Sphinx fails.
    """
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        raise InputError(f"the book needs {', '.join(missing)}: pip install 'fedlab-lite[book]'")
    parts, root = chapters(only), files.project_root()
    source = root / "build" / "book" / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(Path(__file__).with_name("site"), source)
    unused = shutil.ignore_patterns("*.json", "*.svg", "runs")
    if files.figures_dir().exists():
        shutil.copytree(files.figures_dir(), source / "figures", ignore=unused)
    for item in (item for items in parts.values() for item in items):
        file = source / "notebooks" / item.paper / f"{item.stem}.ipynb"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(book_pages.page(item)), encoding="utf-8")
    _write_contents(parts, source)
    command = ["-b", "html", "-q", "-d", str(source.parent / "doctrees"), str(source), str(output)]
    if subprocess.run([sys.executable, "-m", "sphinx", *command], check=False).returncode:
        raise FedlabError(f"Sphinx could not build the book; its sources are in {source}")
    return Path(output) / "index.html"
