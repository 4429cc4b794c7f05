"""Ours against published over all results: a table for the terminal, and Markdown for the two READMEs."""

import re
from pathlib import Path
from typing import Any

from fedlab_lite import figures, files, papers
from fedlab_lite.errors import InputError

SHOWN = 6  # numbers an item shows before "... more"


def _number(value) -> str:
    if value is None:
        return "not finite"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"... {len(lines) - SHOWN} more"]


def _rows(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a result: 'item', 'title', 'claim', 'preset', 'data', 'numbers' (a list of lines), 'holds'."""
    rows = []
    for result in results:
        matched = figures.match(result["metrics"], result["published"])
        names = {row["name"] for row in matched}
        lines = [f"{row['name']}: {_number(row['ours'])} / {_number(row['published'])}" for row in matched]
        lines += [f"{n}: {_number(v['mean'])} / –" for n, v in sorted(result["metrics"].items()) if n not in names]
        about = papers.item(result["paper"], result["item"])
        rows.append(
            {
                "item": papers.Item(result["paper"], result["item"]),
                "title": about["title"],
                "claim": result["claim"],
                "preset": result["preset"],
                "data": result["data_source"],
                "numbers": _short(lines),
                "holds": result["holds"],
            }
        )
    return rows


def committed(folder: Path | None = None) -> list[dict[str, Any]]:
    """The results in `<figures>/<paper>/` itself: the largest preset of each item that was really run."""
    folder = folder or files.project_root() / "figures"
    order = {item: index for index, item in enumerate(papers.items())}
    found = [figures.read_result(file) for paper in papers.PAPERS for file in (folder / paper).glob("*.json")]
    return sorted(found, key=lambda result: order.get((result["paper"], result["item"]), len(order)))


def terminal_table(results: list[dict[str, Any]]):
    """Results as a rich table."""
    from rich.table import Table

    table = Table("notebook", "preset", "data", "ours / published", "claim", "holds", show_lines=True)
    for row in _rows(results):
        holds = "[green]yes[/]" if row["holds"] else "[red]no[/]"
        table.add_row(str(row["item"]), row["preset"], row["data"], "\n".join(row["numbers"]), row["claim"], holds)
    return table


def results_markdown(results: list[dict[str, Any]] | None = None) -> str:
    """The table of results for README.md."""
    lines = ["| notebook | claim | preset, data | ours / published | holds |", "| --- | --- | --- | --- | --- |"]
    for row in _rows(committed() if results is None else results):
        paper, stem = row["item"]
        link = f"[{paper}, {row['title'].partition(':')[0]}](notebooks/{paper}/{stem}.ipynb)"
        holds = "yes" if row["holds"] else "**no**"
        numbers = "<br>".join(row["numbers"])
        lines.append(f"| {link} | {row['claim']} | {row['preset']}, {row['data']} | {numbers} | {holds} |")
    return "\n".join(lines)


def duration(minutes: float) -> str:
    return (
        f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    )


def notebooks_markdown(results: list[dict[str, Any]] | None = None) -> str:
    """The table of notebooks for notebooks/README.md."""
    done = {(row["paper"], row["item"]): row for row in (committed() if results is None else results)}
    presets = " | ".join(papers.PRESETS)
    lines = [f"| notebook | what it puts to the test | {presets} | committed figure | holds |", "| --- " * 7 + "|"]
    for item in papers.items():
        about = papers.item(*item)
        times = " | ".join(duration(papers.estimate(*item, preset)["minutes"]) for preset in papers.PRESETS)
        result = done.get(item)
        figure = f"[{result['preset']}](../figures/{item.paper}/{item.stem}.svg)" if result else "none yet"
        holds = "" if result is None else "yes" if result["holds"] else "**no**"
        title = about["title"].partition(":")[0]
        link = f"[{item.paper}, {title}]({item.paper}/{item.stem}.ipynb)"
        lines.append(f"| {link} | {about['claim']} | {times} | {figure} | {holds} |")
    return "\n".join(lines)


def refresh(text: str, name: str, table: str) -> str:
    """`text` with what stands between `<!-- name:begin -->` and `<!-- name:end -->` replaced by the table.

    >>> refresh("a<!-- t:begin -->old<!-- t:end -->b", "t", "new")
    'a<!-- t:begin -->\\nnew\\n<!-- t:end -->b'
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    pattern = re.compile(f"({re.escape(begin)}).*?({re.escape(end)})", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise InputError(f"the text needs the lines {begin} and {end} once, to know where the table goes")
    return pattern.sub(lambda match: f"{match[1]}\n{table}\n{match[2]}", text)


def readmes() -> dict[Path, str]:
    """What the two READMEs should say, by file."""
    tables = {
        files.project_root() / "README.md": ("results", results_markdown()),
        files.notebooks_dir() / "README.md": ("notebooks", notebooks_markdown()),
    }
    return {file: refresh(file.read_text(), *table) for file, table in tables.items()}


def write() -> list[Path]:
    """Bring the tables of the two READMEs up to date; returns the files."""
    return [files.write_atomic(file, text.encode()) for file, text in readmes().items()]
