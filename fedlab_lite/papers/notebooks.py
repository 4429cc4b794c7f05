"""Notebooks as files: read their parameters, check values for them, and execute them with papermill."""

import ast
import contextlib
import inspect
import json
import logging
import os
import textwrap
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fedlab_lite.data import which
from fedlab_lite.engine import setup
from fedlab_lite.papers import first_cells, presets, results, variants
from fedlab_lite.papers.presets import Item
from fedlab_lite.runs import rule_of, runner
from fedlab_lite.util import InputError, MissingDataError, NotStoredError, choose, files, progress
from fedlab_lite.util.fields import UNREADABLE, Allowed, check_value, normal, type_from
from fedlab_lite.util.progress import switched_on


class NotebookFailed(Exception):
    """A notebook raised an error; the rendered notebook shows where."""


class Parameter(NamedTuple):
    """A typed assignment in the cell tagged `parameters`."""

    hint: Any
    default: Any


def path(item: Item) -> Path:
    """The path of an item's notebook. Raises `MissingDataError` if there is none."""
    if not item.notebook.exists():
        raise MissingDataError(f"{item.notebook} does not exist; {files.CLONE}")
    return item.notebook


def source(cell: Mapping) -> str:
    return "".join(cell["source"])


def parameters(file: Path) -> dict[str, Parameter]:
    """The parameters of a notebook by name.

    Raises: `InputError` if the cell is missing, or if a parameter is untyped or is not a literal.
    """
    cells = files.read_notebook(file)["cells"]
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise InputError(f"{file} has {len(tagged)} cells tagged 'parameters'; it needs one")
    found = {}
    try:
        nodes = ast.parse(source(tagged[0])).body
    except UNREADABLE as error:
        raise InputError(f"{file}: the cell tagged 'parameters' is not Python ({error})") from error
    for node in nodes:
        if not isinstance(node, ast.AnnAssign) or node.value is None:
            raise InputError(f"{file}: a parameter has the form `name: type = literal`, not `{ast.unparse(node)}`")
        try:
            hint = type_from(ast.unparse(node.annotation))
            found[ast.unparse(node.target)] = Parameter(hint, ast.literal_eval(node.value))
        except (TypeError, *UNREADABLE) as error:
            raise InputError(f"{file}: `{ast.unparse(node)}` must use only built-in types and literals") from error
    return found


def with_preset(file: Path, preset: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values together with the preset, if the notebook takes one (lessons of the course do not)."""
    return ({"preset": preset} if "preset" in parameters(file) else {}) | dict(values)


def run_rules(item: Item, preset: str, values: Mapping[str, Any]) -> dict[str, Allowed]:
    """Parameters of an item's runs, and what each may be; `values` may name another model or algorithm."""
    kinds = {name: value for name, value in flat(values).items() if name in ("model", "algorithm")}
    return presets.parameters(*item, preset, **kinds)


def rules(file: Path, values: Mapping[str, Any]) -> dict[str, Allowed]:
    """All parameters of a notebook, and what each may be: its own, and with `overrides` those of its runs."""
    own = parameters(file)
    preset = values.get("preset") or presets.PRESETS[0]
    runs = run_rules(Item(file.parent.name, file.stem), preset, values) if "overrides" in own else {}
    rule = {name: runs[name].rule if name in runs else rule_of(name, hint) for name, (hint, _) in own.items()}
    return runs | {name: Allowed(parameter.hint, rule[name]) for name, parameter in own.items()}


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values in one flat mapping, in which the entries of `overrides` replace `overrides`."""
    return {name: value for name, value in values.items() if name != "overrides"} | values.get("overrides", {})


def check_parameters(file: Path, values: Mapping[str, Any]) -> None:
    """Raise `InputError`, naming type and range, for a value that the notebook does not take (papermill only warns)."""
    if "overrides" in values:
        check_value("overrides", values["overrides"], dict)
    if "preset" in values:
        check_value(f"preset of {file.stem}", values["preset"], str, presets.PRESETS)
    known = rules(file, values)
    for name, value in flat(values).items():
        choose(f"parameter of {file.stem}", name, known)
        check_value(f"{name} of {file.stem}", value, *known[name])


def changed(item: Item, preset: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that differ from the preset's."""
    file = path(item)
    own, known = parameters(file), rules(file, with_preset(file, preset, values))
    table, plain = presets.preset_table(*item, preset), presets.settings(*item, preset)
    runs = run_rules(item, preset, values)

    def differs(name: str, value: Any) -> bool:
        default = own[name].default if name in own else None
        if value in [normal(each, known[name].hint) for each in (None, default, table.get(name))]:
            return False
        try:
            return name not in runs or presets.settings(*item, preset, **{name: value}) != plain
        except InputError:  # it fits together with other values only
            return True

    given = {name: normal(value, known[name].hint) for name, value in flat(values).items() if name != "preset"}
    return {name: value for name, value in given.items() if differs(name, value)}


def cell_values(file: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the notebook's parameter cell: its own parameters by name, all others in `overrides`.

    Tuples become lists.
    """
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in flat(values).items()}
    own = plain.keys() & parameters(file).keys()
    others = {name: value for name, value in plain.items() if name not in own}
    return {name: plain[name] for name in plain if name in own} | ({"overrides": others} if others else {})


def compute(item: Item, preset: str, values: Mapping[str, Any], **options: Any) -> int:
    """Fill the run store with the runs that an item needs at a preset; returns their number.

    `options` are those of `runs.run_all`.
    """
    setup()  # here, because a Dask worker starts here as well
    if presets.item(*item).get("unstored", False) and switched_on("FEDLAB_STORED_ONLY"):
        raise NotStoredError("it trains in its own cells, so its runs are not stored")
    runs = presets.settings(*item, preset, **values)
    runner.run_all(runs, keep_state=presets.item(*item).get("final_states", False), **options)
    return len(runs)


def data_of(item: Item, preset: str, values: Mapping[str, Any]) -> str:
    """The data sets of an item's runs as text, for example 'data embedded digits  '; empty without runs."""
    runs = presets.settings(*item, preset, **values).values()
    return f"data {', '.join(sorted({which.describe(run.dataset) for run in runs}))}  " if runs else ""


def render(item: Item, preset: str, values: Mapping[str, Any]) -> Path:
    """Execute an item's notebook with papermill; returns the path of the rendered notebook.

    Raises: `InputError` for parameters that the notebook does not accept, `MissingDataError` for missing data,
      `NotebookFailed` if a cell raises any other error.
    """
    import papermill
    from jupyter_core.utils import ensure_event_loop

    logging.getLogger("papermill").setLevel(logging.ERROR)  # its check of names does not understand `int | None`
    file = path(item)
    values = with_preset(file, preset, values)
    check_parameters(file, values)
    own = {} if switched_on("FEDLAB_COMMIT") else changed(item, preset, values)  # committed: the item's name
    output = files.rendered_dir() / preset / item.paper / f"{variants.name_of(item.stem, own)}.ipynb"
    files.check_writable(output.parent)
    unfinished = output.with_name(f".{output.name}")  # Papermill writes after each cell; a kill leaves a partial file
    watched, waiting = progress.watched(), progress.every_minute(lambda: f"{item}: running the notebook")
    # The kernel inherits these. A stored notebook has no progress bars. The kernel takes GPU memory only as needed,
    # because this process may already have computed and hold its share. `save_figure` reads what was changed.
    batch = {"FEDLAB_BATCH": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", variants.CHANGED: json.dumps(own)}
    before = {name: os.environ.get(name) for name in batch}
    os.environ.update(batch)
    result = None
    try:
        quiet = {"progress_bar": watched, "extra_arguments": ["--log-level=ERROR"]}  # of the kernel

        def execute() -> None:
            with contextlib.closing(ensure_event_loop()):
                papermill.execute_notebook(
                    str(file), str(unfinished), cell_values(file, values), kernel_name="python3", **quiet
                )

        with ThreadPoolExecutor(1) as thread, waiting:  # in the main thread papermill would catch Ctrl-C
            thread.submit(execute).result()
        result = results.read_result(results.of_run(item, preset))
    except papermill.PapermillExecutionError as error:
        if "claim" in presets.item(*item):  # a lesson of the course has none
            results.save_failure(item, preset, values, f"{error.ename}: {_first_line(error.evalue)}")
        if error.ename == MissingDataError.__name__:
            raise MissingDataError(error.evalue) from error
        raise NotebookFailed(f"{item} failed: {error.ename}: {error.evalue}\nwhere it stopped: {output}") from error
    finally:
        if unfinished.exists():
            picture = results.of_run(item, preset).with_suffix(".png")
            content = first_cells.as_run(files.read_notebook(unfinished), item, output.parent, result, picture)
            files.write_atomic(output, f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode())
            unfinished.unlink()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return output


def _first_line(error: object) -> str:
    """The first line of a message, without the words that announce those that follow."""
    return str(error).partition("\n")[0].removesuffix(" Ways to get it:")


def listing(*functions: Any):
    """The source of functions or classes of the package, as Markdown for a notebook cell.

    It is the code that runs, so it is never out of date.

    >>> from fedlab_lite.algorithms import FedAvg
    >>> print(listing(FedAvg.round).data.splitlines()[1])
    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
    """
    from IPython.display import Markdown

    return Markdown("\n".join(["```python", *(textwrap.dedent(inspect.getsource(fn)) for fn in functions), "```"]))


def produce(item: Item, preset: str, values: Mapping[str, Any], **options: Any) -> str:
    """Compute the missing runs of an item and render its notebook; returns a one-line summary."""
    began = time.monotonic()
    check_parameters(path(item), with_preset(path(item), preset, values))
    known = run_rules(item, preset, values)
    run_values = {name: value for name, value in flat(values).items() if name in known}
    try:
        compute(item, preset, run_values, **options)
        output = render(item, preset, values)
    except (NotStoredError, MissingDataError) as error:
        if not switched_on("FEDLAB_STORED_ONLY"):
            raise
        if switched_on("FEDLAB_COMMIT"):
            results.mark_stale(item)
        raise NotStoredError(f"{item}: {_first_line(error)}") from error
    return f"{item}  {preset}  {time.monotonic() - began:.1f} s  {data_of(item, preset, run_values)}{output}"
