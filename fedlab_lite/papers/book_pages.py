"""Sources of the book's pages: notebooks with a note on how they were run, and the reference of public names."""

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fedlab_lite as fl
from fedlab_lite.papers import first_cells, notebooks, presets, results
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.variants import told
from fedlab_lite.util import InputError, files
from fedlab_lite.util.text import markdown

VERDICT = "<!-- result:end -->"  # in a first cell, after the committed result


def page(item: Item) -> dict[str, Any]:
    """A notebook rendered at the largest preset that finished, or without outputs if none did; a note says which.

    The first cell is the committed notebook's, because its result may be newer. Paths of this machine are cut.
    """
    plain = files.read_notebook(item.notebook)
    rendered = _rendered(item)
    content, ran = rendered or plain, {}
    if rendered:
        ran = rendered["metadata"].pop("papermill", {})
        rendered["cells"][0] = plain["cells"][0]
    result = results.read_result(files.figures_dir() / item.paper / f"{item.stem}.json")
    note = _how_it_ran(item, ran.get("parameters", {}), result) if rendered else _not_run(item, result)
    if note:
        content["cells"][0]["source"] = _with_note(notebooks.source(content["cells"][0]), note)
    if not rendered and result:
        shown = f"The committed picture, made at `{result['preset']}`:\n\n![the result](../../figures/{item}.png)"
        picture = {"cell_type": "markdown", "id": "committed-picture", "metadata": {}, "source": shown}
        saved = [n for n, cell in enumerate(content["cells"], start=1) if ".save_figure(" in notebooks.source(cell)]
        for place in saved[:1]:
            content["cells"].insert(place, picture)
    where = Path(ran.get("input_path") or item.notebook).resolve()  # <checkout>/notebooks/<paper>/<stem>.ipynb
    return _without_paths(content, where.parents[2])


def _rendered(item: Item) -> dict[str, Any] | None:
    """The notebook as it ran at the largest preset at which it finished."""
    for preset in reversed(presets.PRESETS):
        file = files.rendered_dir() / preset / item.paper / f"{item.stem}.ipynb"
        if file.exists():
            found = files.read_notebook(file)
            if not found["metadata"].get("papermill", {}).get("exception"):
                return first_cells.moved(found, file.parent, item.notebook.parent)
    return None


def _with_note(text: str, note: str) -> str:
    """The note stands after the committed verdict; in a lesson, which has none, after the title."""
    before, mark, after = text.partition(VERDICT if VERDICT in text else "\n")
    return f"{before}{mark}\n\n```{{note}}\n{note}\n```\n\n{after}"


def _not_run(item: Item, result: dict | None) -> str:
    said = "This notebook was not run where the book was built, so the cells below have no outputs. "
    if result:
        return f"{said}The pictures here are of the committed result, made at `{result['preset']}`."
    return f"{said}`fedlab run {item}` runs it, and `make book` shows what it printed and drew."


def _how_it_ran(item: Item, given: dict[str, Any], result: dict | None) -> str:
    """What differs between the outputs below and the verdict above; empty where nothing does."""
    preset = given.get("preset", presets.PRESETS[0])
    values = {name: value for name, value in given.items() if name != "preset"}
    try:
        own = notebooks.changed(item, preset, values)
    except InputError:  # a parameter that the notebook no longer has
        own = values
    differs = f"with {', '.join(markdown(f'{name} = {told(value)}') for name, value in own.items())}" if own else ""
    if not differs and (not result or result["preset"] == preset):
        return ""
    said = f"The outputs below are of a run at `{preset}`{differs and ' ' + differs}."
    return said + (f" The verdict above is of the committed run, at `{result['preset']}`." if result else "")


def _without_paths(content: dict[str, Any], checkout: Path) -> dict[str, Any]:
    """The notebook with paths that start in the checkout, or at `~`, in place of absolute ones."""
    text = json.dumps(content)
    for folder, short in ((checkout, "."), (Path.home(), "~")):
        there = re.escape(json.dumps(str(folder))[1:-1])
        text = re.sub(rf"{there}/", "" if short == "." else f"{short}/", text)
        text = re.sub(rf"{there}(?![\w.-])", short, text)
    return json.loads(text)


# --- the reference ------------------------------------------------------------------------------------------------


def write_reference(folder: Path) -> list[str]:
    """Write a page on the names of `fl` and one per room on its other names; returns the stems of the pages."""
    folder.mkdir()
    top = [name for name in fl.__all__ if not inspect.ismodule(getattr(fl, name))]
    objects = [getattr(fl, name) for name in top]
    said = ["# fl: the public names", "", "`import fedlab_lite as fl` has these names, and the rooms that follow."]
    said += ["", "| name | what it is, or does |", "| --- | --- |"]
    for name in sorted(top, key=str.lower):
        first = (inspect.getdoc(getattr(fl, name)) or "").partition("\n")[0].replace("|", r"\|")
        said.append(f"| {{py:obj}}`fl.{name} <fedlab_lite.{name}>` | {first} |")
    said += ["", *_entries("fedlab_lite", sorted(top, key=str.lower))]
    (folder / "fl.md").write_text("\n".join(said), encoding="utf-8")
    rooms = [name for name in fl.__all__ if inspect.ismodule(getattr(fl, name))]
    for room in rooms:
        module = getattr(fl, room)
        names = [name for name, value in vars(module).items() if _is_public(name, value, module.__name__)]
        others = [name for name in names if not any(getattr(module, name) is known for known in objects)]
        lines = [f"# fl.{room}", "", "```{eval-rst}", f".. automodule:: {module.__name__}", "```", ""]
        lines += _entries(module.__name__, others)
        (folder / f"{room}.md").write_text("\n".join(lines), encoding="utf-8")
    return ["fl", *rooms]


def _is_public(name: str, value: Any, module: str) -> bool:
    """Whether a function or class of a room is for others: those that the room imports from its own files."""
    plain = inspect.isclass(value) or inspect.isfunction(value)
    return not name.startswith("_") and plain and value.__module__.startswith(module)


def _entries(module: str, names: Iterable[str]) -> list[str]:
    """One heading and one entry of Sphinx's autodoc for each name."""
    lines = []
    for name in names:
        value = getattr(importlib.import_module(module), name)
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        lines += [
            f"## {name}",
            "",
            *_options(value),
            "```{eval-rst}",
            f".. {kind}:: {module}.{name}{_hyper_parameters(value)}",
        ]
        lines += ["   :members:"] if kind == "autoclass" and not issubclass(value, tuple) else []
        lines += ["```", ""]
    return lines


def _is_algorithm(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, fl.Algorithm)


def _options(value: Any) -> list[str]:
    """A table of the hyper-parameters of an algorithm's class, or of the settings; empty for others."""
    if not (_is_algorithm(value) or value is fl.Settings):
        return []
    words, known = fl.algorithms.option_words(value), dataclasses.fields(value)
    rows = [
        f"| `{field.name}` | `{field.default!r}` | {markdown(words[field.name])} |" for field in known if field.init
    ]
    return ["| option | default | what it is |", "| --- | --- | --- |", *rows, ""]


def _hyper_parameters(value: Any) -> str:
    """The signature of an algorithm's class, from its fields; empty for others, which Python tells itself."""
    if not _is_algorithm(value):
        return ""
    return f"({', '.join(f'{field.name}={field.default!r}' for field in dataclasses.fields(value) if field.init)})"
