"""What a notebook's first cell says of a result: of the committed one, or in a rendered notebook of its own run."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlab_lite.papers.presets import Item, title
from fedlab_lite.papers.variants import told
from fedlab_lite.util import InputError, files
from fedlab_lite.util.text import code, markdown

Result = Mapping[str, Any]
STOPPED = "This run stopped before its verdict."
_LINK = re.compile(r"\]\((?![\w+.-]+:|[/#])([^()\s]+)\)")  # to a place that is given from the notebook's folder


def refresh(text: str, name: str, table: str) -> str:
    """Replace the text between `<!-- name:begin -->` and `<!-- name:end -->` by the table.

    >>> refresh("a<!-- t:begin -->old<!-- t:end -->b", "t", "new")
    'a<!-- t:begin -->\\nnew\\n<!-- t:end -->b'
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    pattern = re.compile(f"({re.escape(begin)}).*?({re.escape(end)})", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise InputError(f"the text must have the lines {begin} and {end} exactly once; the table goes between them")
    return pattern.sub(lambda match: f"{match[1]}\n{table}\n{match[2]}", text)


def changes(result: Result) -> str:
    """The parameters that differ from the preset's, in words; empty where none does."""
    changed = ", ".join(f"{name}={told(value)}" for name, value in result.get("changed", {}).items())
    return f"with {changed}" if changed else ""


def verdict_of(result: Result | None) -> str:
    """The word, the scope and the reason in Markdown."""
    if result is None:
        return "**not yet run**"
    stale = " (stale)" if result.get("stale") else ""
    word, scope, preset = markdown(result["word"]), markdown(result["scope"]), code(result["preset"])
    reason = ": ".join(filter(None, (changes(result), result["reason"])))
    return f"**{word}**{stale} ({scope}, {preset}): {markdown(reason)}"


def committed(item: Item, result: Result | None) -> str:
    """The part of a notebook's first cell that shows its committed result: picture, verdict and reason."""
    picture = f"![{title(item)[0]}](../../figures/{item.paper}/{item.stem}.png)\n\n" if result else ""
    return f"{picture}{verdict_of(result)}."


def as_run(content: dict[str, Any], item: Item, folder: Path, result: Result | None, picture: Path) -> dict[str, Any]:
    """A rendered notebook for its folder: its own picture and verdict in the first cell, and links that hold there.

    Args:
      result: of this run; None: it stopped before its verdict.
    """
    moved(content, item.notebook.parent, folder)
    page = _from(folder, files.figures_dir() / item.paper / "README.md")
    for first in content["cells"]:  # a lesson has no such cell; before it papermill may have put an error's text
        if "<!-- result:begin -->" not in (text := "".join(first["source"])):
            continue
        shown = f"![{title(item)[0]}]({_from(folder, picture)})\n\n" if picture.exists() and result else ""
        said = f"{shown}*This run*: {verdict_of(result)}." if result else STOPPED
        first["source"] = refresh(text, "result", f"{said}\n\n[Committed results]({page}) are on a page of their own.")
    return content


def moved(content: dict[str, Any], old: Path, new: Path) -> dict[str, Any]:
    """The notebook with links in its text that lead from the folder `new` to where they led from `old`."""

    def link(match: re.Match) -> str:
        place, mark, part = match[1].partition("#")
        there = (old / place).resolve()
        return f"]({_from(new, there)}{mark}{part})" if there.exists() else match[0]

    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _LINK.sub(link, "".join(cell["source"]))
    return content


def _from(folder: Path, place: Path) -> str:
    """A path relative to a folder, as links have it."""
    return Path(os.path.relpath(place, folder.resolve())).as_posix()
