"""What the papers print and what our notebooks run: one TOML file a paper, read by name.

`[items.<notebook>]` has its title, its claim, `published` numbers (name = [value, where]) and the presets. A preset has
`minutes`, `hardware` ("2 CPU cores" where it says none), `base` settings and named `runs`; where it has `columns`, each
is crossed with each run under the name "column/run". What stands in the item itself is for all its presets, which add
to it: base, runs and columns are merged, other values replaced.

    [shared]
    ring = { graph = "ring" }
    random = { graph = "random", edge_probability = 0.25 }
    local = { algorithm = "local", epochs = 3 }

    [items.tab01_accuracy]
    title = "Table 1: ..."
    claim = "..."
    published.best = [62.4, "Sec. 5"]
    runs = ["local", { dpsgd = { algorithm = "dpsgd" }, deprl = { algorithm = "deprl", head_lr = 0.05 } }]
    laptop.minutes = 20
    laptop.base = [{ dataset = "motion", num_clients = 128, batch_size = 16 }, { lr = 0.1, num_rounds = 40 }]
    laptop.columns."motion_{on}_{alpha}" = { alpha = [0.1, 0.3], on = ["ring", "random"], seeds = [0] }
    laptop.columns."motion_ring_0.3" = { seeds = [0, 1, 2], deprl = { head_lr = 0.1 }, without = ["local"] }

- A list of settings is merged, the last wins: tables, and names in `[shared]` (whose entries may name those above them).
- Runs, columns and axes may be a list too: of names in `[shared]`, each with its settings, and of such tables.
- A name in braces makes a grid: a cell for each combination, the first axis slowest. An axis is a list of numbers, the
  values of the setting of its name, or settings by name as above; what is no axis is for every cell.
- A run's values win over its column's, those over the base's; a table `<run>` inside a column wins over all.
- A preset that is `part_of` another item has that item's `columns` of these names.
- A preset or a column has no run that its `without` names.
- `final_states`: `compute` keeps them, so that `experiment.measured` need not train once more.
- `unstored`: the notebook trains and times in its own cells, so `make figures`, which may do neither, leaves it out.

`[tables.<notebook>]` is a printed table: `rows` by name are [label, values...], "" where the paper prints no number;
`columns` by name are labels, in braces a grid of them: axes with the labels of their points, and how `label` joins them.

>>> sorted(settings("fedeq", "fig04_mlp_vs_deq_mlp", "quick"))
['deq_mlp', 'local', 'mlp']
>>> [row["value"] for row in published("fedeq", "tab03_accuracy") if row["name"] == "femnist_100/fedeq"]
[87.13]
"""

import difflib
import fnmatch
import itertools
import string
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedlab_lite.algorithms import algorithm_options
from fedlab_lite.runs import PRESETS, RANGES, Settings, check, model_option_types, setting_types
from fedlab_lite.util import InputError, choose, files

SETTINGS = {name: hint for name, hint in setting_types().items() if not name.endswith("_options")}
COURSE = "learn"  # no paper, but its chapters are items like theirs
PAPERS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("*.toml") if file.stem != COURSE))
ALL = (*PAPERS, COURSE)
PER_PRESET = ("minutes", "hardware", "part_of", "base", "runs", "columns", "without", "data")  # in an item: for all its presets


class Item(NamedTuple):
    """One figure, table, theorem or section of a paper: one notebook, one result."""

    paper: str
    stem: str

    def __str__(self) -> str:
        return f"{self.paper}/{self.stem}"

    @property
    def notebook(self) -> Path:
        """Where its notebook lies in a checkout, written or not."""
        return files.notebooks_dir() / self.paper / f"{self.stem}.ipynb"


@cache
def load(paper: str) -> dict[str, Any]:
    """A paper's file, its grids and shared settings written out. Raises `InputError` for an unknown paper."""
    choose("paper", paper, ALL)
    return expand(tomllib.loads((Path(__file__).parent / f"{paper}.toml").read_text()))


def expand(content: dict[str, Any]) -> dict[str, Any]:
    """A file as written with every preset of every item, and every column of every table, in full."""
    shared: dict[str, Any] = {}
    for name, spec in content.get("shared", {}).items():
        shared[name] = _one(spec, shared)
    items, tables = content.get("items", {}), content.get("tables", {})
    return {name: value for name, value in content.items() if name != "shared"} | {
        "items": {stem: _item(about, shared) for stem, about in items.items()},
        "tables": {stem: _table(table) for stem, table in tables.items()},
    }


def _table(table: dict[str, Any]) -> dict[str, Any]:
    """A printed table with its columns' labels and its rows in full."""
    rows: dict[str, Any] = {}
    columns = _labels(table["columns"])
    given = table["rows"]
    if isinstance(given, list):
        given = {name: row + [""] * (1 + len(columns) - len(row)) for name, *row in given}
    for name, row in given.items():
        if isinstance(row, list):
            rows[name] = row
        else:
            rows |= {cell: [label, *values] for (cell, label), values in zip(_labels({name: row}).items(), row["values"], strict=True)}
    return {"name": "{row}/{column}"} | table | {"columns": columns, "rows": rows}


def _item(about: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    of_all = {key: about[key] for key in PER_PRESET if key in about}
    minutes = of_all.pop("minutes", {})
    result = {key: value for key, value in about.items() if key not in PER_PRESET}
    if "published" in about:
        rows = about["published"].items()
        result["published"] = [{"name": name, "value": value, "where": where} for name, (value, where) in rows]
    for preset in PRESETS:
        own = _one(about.get(preset, {}), shared)
        table = {"minutes": minutes[preset] if isinstance(minutes, dict) else minutes} | of_all | own
        if "data" in of_all:
            table["data"] = _merged(of_all["data"], own.get("data", {}))
        if "part_of" not in table:
            for key, read in (("base", _one), ("runs", _named), ("columns", _named)):
                if key in table:
                    table[key] = _merged(*(read(part[key], shared) for part in (of_all, own) if key in part))
        trains = "runs" in table or "part_of" in table
        result[preset] = {"hardware": "one GPU" if trains and preset == "paper" else "2 CPU cores"} | table
    return result


def _merged(*tables: dict[str, Any]) -> dict[str, Any]:
    """Of what two say the later, and of tables in them as well."""
    result: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            both = isinstance(value, dict) and isinstance(result.get(name), dict)
            result[name] = _merged(result[name], value) if both else value
    return result


def _one(spec: dict[str, Any] | list[Any], shared: dict[str, Any]) -> dict[str, Any]:
    """Settings: a table, or a list of tables and of names of shared ones."""
    parts = spec if isinstance(spec, list) else [spec]
    for part in parts:
        if not isinstance(part, dict):
            choose("shared settings", part, shared)
    return _merged(*(part if isinstance(part, dict) else shared[part] for part in parts))


def _named(spec: dict[str, Any] | list[Any], shared: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by name: a table of them, or a list of tables and of names that are shared ones'; grids written out."""
    result: dict[str, Any] = {}
    for part in spec if isinstance(spec, list) else [spec]:
        for name, own in part.items() if isinstance(part, dict) else [(part, [part])]:
            result = _merged(result, _grid(name, _one(own, shared), shared) if "{" in name else {name: _one(own, shared)})
    return result


def _axes(pattern: str, table: dict[str, Any]) -> list[str]:
    """The names in braces, in the table's order."""
    names = [name for _, name, _, _ in string.Formatter().parse(pattern) if name]
    for name in names:
        choose(f"axis of {pattern!r}", name, table)
    return [name for name in table if name in names]


def _numbers(axis: Any) -> bool:
    return isinstance(axis, list) and all(isinstance(value, int | float) for value in axis)


def _grid(pattern: str, table: dict[str, Any], shared: dict[str, Any]) -> dict[str, dict[str, Any]]:
    axes = _axes(pattern, table)
    each = {name: value for name, value in table.items() if name not in axes}
    points = []
    for axis in axes:
        spec = {f"{value:g}": {axis: value} for value in table[axis]} if _numbers(table[axis]) else table[axis]
        points.append(_named(spec, shared).items())
    return {
        pattern.format(**dict(zip(axes, (name for name, _ in cell), strict=True))): _merged(each, *(own for _, own in cell))
        for cell in itertools.product(*points)
    }


def _labels(columns: dict[str, Any]) -> dict[str, str]:
    """The labels of a printed table's columns by name, grids written out."""
    result = {}
    for pattern, table in _one(columns, {}).items():
        if isinstance(table, str):
            result[pattern] = table
            continue
        table = _one(table, {})
        axes = _axes(pattern, table)
        points = [{str(v): str(v) for v in table[axis]} if _numbers(table[axis]) else _one(table[axis], {}) for axis in axes]
        for cell in itertools.product(*(point.items() for point in points)):
            names, labels = (dict(zip(axes, side, strict=True)) for side in zip(*cell, strict=True))
            result[pattern.format(**names)] = table["label"].format(**labels)
    return result


def items(pattern: str = "*", of: Sequence[str] = PAPERS) -> list[Item]:
    """The items whose "<paper>/<stem>" a shell pattern matches, or contains as a part.

    Raises `InputError`, naming what is near, where nothing matches.

    >>> [str(item) for item in items("fedeq/tab03")]
    ['fedeq/tab03_accuracy']
    """
    everything = [Item(paper, stem) for paper in of for stem in load(paper).get("items", ())]
    pattern = pattern.removesuffix(".ipynb").removeprefix("notebooks/")
    found = [item for item in everything if fnmatch.fnmatch(str(item), pattern) or pattern in str(item)]
    if not found:

        def alike(item: Item) -> tuple[float, ...]:
            """How far the pattern is like the beginning of the item's name, then like all of it."""
            pairs = [(name[: len(pattern) + 1], name) for name in (item.stem, str(item))]
            return max(tuple(difflib.SequenceMatcher(None, pattern, part).ratio() for part in pair) for pair in pairs)

        near = sorted((item for item in everything if alike(item)[0] > 0.6), key=alike, reverse=True)[:3]
        words = f"near it: {', '.join(map(str, near))}" if near else "`fedlab list` shows all there are"
        raise InputError(f"no notebook matches {pattern!r}; {words}")
    return found


def item(paper: str, stem: str) -> dict[str, Any]:
    """Title, claim and presets of an item. Raises `InputError` for an unknown one."""
    table = load(paper).get("items", {})
    choose(f"notebook of {paper}", stem, table)
    return table[stem]


def headlines() -> list[Item]:
    """The one item of each paper that says most."""
    return [Item(paper, load(paper)["headline"]) for paper in PAPERS if "headline" in load(paper)]


def link(paper: str) -> str:
    """Where a paper can be read, in Markdown; where it is not published, a word on that."""
    where = load(paper)["link"]
    return f"[{where.removeprefix('https://')}]({where})" if where.startswith("https:") else where


def preset_table(paper: str, stem: str, preset: str) -> dict[str, Any]:
    """What an item's preset says; of one that is `part_of` another item, with that item's base, runs and columns."""
    choose("preset", preset, PRESETS)
    table = item(paper, stem)[preset]
    if "part_of" not in table:
        return table
    whole = item(paper, table["part_of"])[preset]
    without = [*whole.get("without", ()), *table.get("without", ())]
    columns = {name: whole["columns"][name] for name in table.get("columns", whole["columns"])}
    return whole | table | {"columns": columns, "without": without}


def estimate(paper: str, stem: str, preset: str) -> dict[str, Any]:
    """'clients', 'rounds' (the largest of the item's runs, None without runs), 'minutes', 'hardware'."""
    table = preset_table(paper, stem, preset)
    runs = settings(paper, stem, preset).values()
    return {
        "clients": max((run.num_clients for run in runs), default=None),
        "rounds": max((run.num_rounds for run in runs), default=None),
        "minutes": table["minutes"],
        "hardware": table["hardware"],
    }


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Names and types that a run of this algorithm and model takes, options included."""
    model, algorithm = (values.get(name, getattr(Settings, name)) for name in ("model", "algorithm"))
    for name, value in (("model", model), ("algorithm", algorithm)):
        if not isinstance(value, str):
            raise InputError(f"{name} must be of type str, got {value!r} ({type(value).__name__})")
    return model_option_types(model) | algorithm_options(algorithm) | SETTINGS


def _settings(values: Mapping[str, Any]) -> Settings:
    """Settings from flat names: what is no setting is an option of the algorithm, of the model, or of both."""
    plain = {name: value for name, value in values.items() if name in SETTINGS}
    types = {
        "model_options": model_option_types(plain.get("model", Settings.model)),
        "algorithm_options": algorithm_options(plain.get("algorithm", Settings.algorithm)),
    }
    options = {kind: {name: values[name] for name in names if name in values} for kind, names in types.items()}
    return Settings(**plain, **options)


def _flat_runs(paper: str, stem: str, preset: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Of every run by name: what the preset says for all runs or for its column, and what it says for this run."""
    table = preset_table(paper, stem, preset)
    runs = table.get("runs", {})
    result = {}
    for column, values in table.get("columns", {"": {}}).items():
        values = _merged(table.get("base", {}), values)
        common = {name: value for name, value in values.items() if name not in {"without", *runs}}
        without = {*table.get("without", ()), *values.get("without", ())}
        for name, own in runs.items():
            if name not in without:
                result[f"{column}/{name}" if column else name] = common, own | values.get(name, {})
    return result


def parameters(paper: str, stem: str, preset: str, **overrides: Any) -> dict[str, Any]:
    """What some run of the item takes: settings, and options of its model and algorithm, with their types.

    `overrides`: another model or algorithm, whose options it then is.
    """
    known: dict[str, Any] = {}
    for common, own in _flat_runs(paper, stem, preset).values():
        known |= _known(common | own | overrides)
    return known


def settings(paper: str, stem: str, preset: str, /, **overrides) -> dict[str, Settings]:
    """The runs of an item by name ("run", or "column/run" where the preset has columns); none if it trains nothing.

    Args:
      overrides: replace a setting or an option in every run that takes it; None keeps the preset's.

    Raises: `InputError` for an unknown item, preset or override, or a value that does not fit.
    """
    where = f"{paper}/{stem} at {preset}"
    overrides = {name: value for name, value in overrides.items() if value is not None}
    result, offered, used, known = {}, set(overrides), set(), set()
    for name, (common, own) in _flat_runs(paper, stem, preset).items():
        values = common | own | overrides
        takes = _known(values)
        for option in overrides.keys() & takes.keys() & RANGES.keys():
            check(option, overrides[option], takes[option])
        for option in own:
            choose(f"option of run {name!r} of {where}", option, takes)
        offered |= common.keys()
        used |= values.keys() & takes.keys()
        known |= takes.keys()
        result[name] = _settings({option: value for option, value in values.items() if option in takes})
    for option in sorted(offered - used) if result else ():
        choose(f"parameter of {where}", option, known)
    return result


def published(paper: str, stem: str) -> list[dict[str, Any]]:
    """What the paper prints: a list of {'name', 'value', 'where'}; values as printed (accuracies in percent)."""
    content = load(paper)
    rows = list(content["items"].get(stem, {}).get("published", []))
    if stem in content["tables"]:
        rows += _cells(content["tables"][stem])
    elif stem not in content["items"]:
        choose(f"table or notebook of {paper}", stem, content["tables"] | content["items"])
    return rows


def _cells(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": table["name"].format(row=row, column=column),
            "value": value,
            "where": f"{table['where']}, row '{label}', column '{table['columns'][column]}'",
        }
        for row, (label, *values) in table["rows"].items()
        for column, value in zip(table["columns"], values, strict=True)
        if value != ""
    ]
