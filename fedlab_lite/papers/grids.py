"""How papers/*.toml are written, and how they are written out for `papers.presets`.

An item has a title, a claim, the paper's sentence (`quote`) and its place (`where`), `published` numbers and three
presets. A preset has `minutes`, `hardware`, settings (`base`) and `runs` by name. It may also have `columns`: then each
run is made once per column, under the name "column/run". Values of the item itself are for all its presets. A preset's
own values are merged into them (base, runs, columns), or replace them (all others).

    [shared]
    ring = { graph = "ring" }
    random = { graph = "random", edge_probability = 0.25 }
    dpsgd = { algorithm = "dpsgd", epochs = 3 }

    [items.tab01_accuracy]
    title = "Table 1: ..."
    claim = "..."
    published.best = [62.4, "Sec. 5"]  # its value, and where it is printed
    minutes = { quick = 0.7, laptop = 20 }  # or one number
    runs = ["dpsgd", "deprl"]
    laptop.base = ["random", { dataset = "motion", num_clients = 128, deprl.head_lr = 0.05 }]
    laptop.columns."motion_{on}_{alpha}" = { alpha = [0.1, 0.3], on = ["ring", "random"], seeds = [0] }
    laptop.columns."motion_ring_0.3" = { seeds = [0, 1, 2], without = ["dpsgd"] }

- Settings are one table, or a list of tables and of names in `[shared]`. Later entries of a list win. A shared entry
  may name entries above it. The name of an algorithm means this algorithm as it is, unless `[shared]` says otherwise.
- Runs, columns and axes are settings by name: one table, or a list of names in `[shared]` and of such tables.
- A name with braces is a grid, with one cell per combination; the first axis changes slowest. An axis is settings by
  name, or a list of values of the setting that has the axis's name. Other values are for every cell.
- A run's values win over its column's, and these over the base's. A column or the base may also have a table with a
  run's name; its values win over all others.
- A preset that is `part_of` another item has that item's `columns` of these names; without names, all of them.
- `without` names runs that a preset or a column does not have. A preset may be a list of tables, like settings.
- `hardware` is "2 CPU cores" by default; "one GPU" for trained runs at `paper`.
- The minutes of trained runs at `paper` are computed, see `papers.floors`.
- `final_states`: `compute` also stores the runs' final states, so that `runs.measured` does not train again.
- At the top of a file, `rivals` names printed tables: all results on the same data are held against their order of
  methods. `stands_for` names, for other data, those of the paper whose place they take.
- `reads`: further keys of the item and of its presets, which its notebook's cells read; any other key is an error.
- `unstored`: the notebook trains and times in its own cells. `make figures` may do neither, so it leaves the item out.

`[tables.<notebook>]` is a printed table. It has the label of each of its `columns`, and `rows` = [label, values...].
A value that is not printed is "" (in a list of rows it may also be left out at the end). A name with braces is a grid
of rows or columns. It has axes, with a label for each point, and `label`, which joins these labels. A grid of rows also
has the `values` of each row.
"""

import itertools
import string
from collections.abc import Callable
from typing import Any

from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.runs import PRESETS
from fedlab_lite.util import InputError, choose

PER_PRESET = ("minutes", "hardware", "part_of", "base", "runs", "columns", "without", "data")
ABOUT = ("title", "claim", "quote", "where", "question", "needs", "reading", "published", "reads", "final_states")
ABOUT += ("unstored", *PRESETS)
Table = dict[str, Any]


def expand(content: Table) -> Table:
    """The content of a file with all grids written out: presets of items, rows and columns of tables."""
    shared: Table = {name: {"algorithm": name} for name in ALGORITHMS}
    for name, spec in content.get("shared", {}).items():
        shared[name] = _one(spec, shared)
    items = {stem: _item(stem, about, shared) for stem, about in content.get("items", {}).items()}
    tables = {stem: _printed(table) for stem, table in content.get("tables", {}).items()}
    return {name: value for name, value in content.items() if name != "shared"} | {"items": items, "tables": tables}


def _item(stem: str, about: Table, shared: Table) -> Table:
    known = {*PER_PRESET, *about.get("reads", ())}
    for key in about:
        choose(f"key of {stem}", key, known | {*ABOUT})
    of_all = {key: about[key] for key in PER_PRESET if key in about}
    result = {key: value for key, value in about.items() if key not in PER_PRESET}
    if "published" in about:
        result["published"] = [_row(stem, name, row) for name, row in about["published"].items()]
    for preset in PRESETS:
        own = _one(about.get(preset, {}), shared)
        for key in own:
            choose(f"key of {stem} at {preset}", key, known)
        table = of_all | own
        if isinstance(minutes := table.get("minutes"), dict):
            table["minutes"] = minutes.get(preset)
        trains = "runs" in table or "part_of" in table
        counted = trains and preset == "paper" and "unstored" not in about
        if counted == isinstance(table.get("minutes"), int | float):
            wrong = "has `minutes`, which its floor says" if counted else "needs `minutes`, its estimated time"
            raise InputError(f"{stem} at {preset} {wrong}")
        if "part_of" not in table:
            for key, read in (("base", _one), ("runs", _named), ("columns", _named), ("data", _one)):
                if key in table:
                    table[key] = merged(*(read(part[key], shared) for part in (of_all, own) if key in part))
        result[preset] = {"hardware": "one GPU" if trains and preset == "paper" else "2 CPU cores"} | table
    return result


def _row(stem: str, name: str, row: Any) -> Table:
    if not (isinstance(row, list) and len(row) == 2):
        raise InputError(f"published {name!r} of {stem} must be [value, where], got {row!r}")
    return {"name": name, "value": row[0], "where": row[1]}


def merged(*tables: Table) -> Table:
    """Merge tables; later values win, and tables inside them are merged in the same way."""
    result: Table = {}
    for table in tables:
        for name, value in table.items():
            both = isinstance(value, dict) and isinstance(result.get(name), dict)
            result[name] = merged(result[name], value) if both else value
    return result


def _one(spec: Any, shared: Table) -> Table:
    """Settings, from a table, from a name in `shared`, or from a list of both."""
    parts = spec if isinstance(spec, list) else [spec]
    for part in parts:
        if not isinstance(part, dict):
            choose("shared settings", str(part), shared)
    return merged(*(part if isinstance(part, dict) else shared[part] for part in parts))


def _named(spec: Any, shared: Table) -> dict[str, Table]:
    """Settings by name, with grids written out."""
    result: Table = {}
    for part in spec if isinstance(spec, list) else [spec]:
        for name, own in part.items() if isinstance(part, dict) else [(part, part)]:
            values = _one(own, shared)
            result = merged(result, _grid(name, values, shared) if "{" in name else {name: values})
    return result


def _grid(pattern: str, table: Table, shared: Table) -> dict[str, Table]:
    cells = _cells_of(pattern, table, lambda axis, number: {axis: number}, lambda spec: _named(spec, shared))
    return {cell: merged(each, *points.values()) for cell, each, points in cells}


def _labels(columns: Any) -> dict[str, str]:
    """Labels by name, with grids written out."""
    result = {}
    for name, label in _one(columns, {}).items():
        if isinstance(label, str):
            result[name] = label
        else:
            cells = _cells_of(name, _one(label, {}), lambda _, number: str(number), lambda spec: _one(spec, {}))
            result |= {cell: each["label"].format(**points) for cell, each, points in cells}
    return result


def _cells_of(pattern: str, table: Table, number: Callable, read: Callable) -> list[tuple[str, Table, Table]]:
    """The cells of a grid: the name of each, its values outside the axes, and its point on each axis."""
    braces = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
    for name in sorted(braces):
        choose(f"axis of {pattern!r}", name, table)
    axes, each = {}, {}
    for name, value in table.items():
        if name not in braces:
            each[name] = value
        elif isinstance(value, list) and all(isinstance(point, int | float) for point in value):
            axes[name] = {f"{point:g}": number(name, point) for point in value}
        else:
            axes[name] = read(value)
    result = []
    for cell in itertools.product(*(axis.items() for axis in axes.values())):
        names, points = (dict(zip(axes, side, strict=True)) for side in zip(*cell, strict=True))
        result.append((pattern.format(**names), each, points))
    return result


def _printed(table: Table) -> Table:
    columns, rows = _labels(table["columns"]), table["rows"]
    if isinstance(rows, list):
        rows = {name: row + [""] * (1 + len(columns) - len(row)) for name, *row in rows}
    full: Table = {}
    for name, row in rows.items():
        if isinstance(row, list):
            full[name] = row
        else:
            cells = _labels({name: row}).items()
            full |= {cell: [label, *values] for (cell, label), values in zip(cells, row["values"], strict=True)}
    return {"name": "{row}/{column}"} | table | {"columns": columns, "rows": full}
