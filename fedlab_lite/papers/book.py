"""Build a static site from the rendered notebooks with Sphinx and MyST-NB; nothing is executed.

The pages in `build/book/source` are laid out as in the checkout, so links between them and to pictures stay valid.
The extra `book` installs the packages. Neither building nor reading the site needs a network.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedlab_lite.papers import presets
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


def page(item: Item) -> dict[str, Any]:
    """A notebook rendered at the largest preset that finished; without outputs if none did."""
    plain = files.read_notebook(item.notebook)
    for preset in reversed(presets.PRESETS):
        file = files.rendered_dir() / preset / item.paper / f"{item.stem}.ipynb"
        if file.exists():
            rendered = files.read_notebook(file)
            if not rendered["metadata"].get("papermill", {}).get("exception"):
                rendered["cells"][0] = plain["cells"][0]  # the committed result may be newer
                return rendered
    return plain


def _contents(parts: dict[str, list[Item]], source: Path) -> str:
    """The front page's tables of contents, one per part, with the part's results page if there is one."""
    lines = []
    for paper, items in parts.items():
        results = f"figures/{paper}/README"
        lines += ["", "```{toctree}", ":hidden:", f":caption: {presets.load(paper)['name']}", ""]
        lines += [f"Results <{results}>"] if (source / f"{results}.md").exists() else []
        for item in items:
            known = presets.load(paper)["items"].get(item.stem)
            title, name = known and known["title"].partition(":")[0], f"notebooks/{paper}/{item.stem}"
            lines.append(f"{title} <{name}>" if title else name)
        lines.append("```")
    return "\n".join(lines)


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
        file.write_text(json.dumps(page(item)), encoding="utf-8")
    front = (root / "README.md").read_text(encoding="utf-8") + _contents(parts, source)
    (source / "index.md").write_text(front, encoding="utf-8")
    command = ["-b", "html", "-q", "-d", str(source.parent / "doctrees"), str(source), str(output)]
    if subprocess.run([sys.executable, "-m", "sphinx", *command], check=False).returncode:
        raise FedlabError(f"Sphinx could not build the book; its sources are in {source}")
    return Path(output) / "index.html"
