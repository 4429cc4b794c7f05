"""What the papers print and what our notebooks run, from one TOML file per paper; `papers.grids` has its form.

>>> sorted(settings("fedeq", "fig04_mlp_vs_deq_mlp", "quick"))
['deq_mlp', 'local', 'mlp']
>>> [row["value"] for row in published("fedeq", "tab03_accuracy") if row["name"] == "femnist_100/fedeq"]
[87.13]
"""

import difflib
import fnmatch
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedlab_lite.algorithms import algorithm_options
from fedlab_lite.nn import model_options
from fedlab_lite.papers.grids import expand, merged
from fedlab_lite.runs import PRESETS, Settings
from fedlab_lite.util import InputError, choose, files
from fedlab_lite.util.fields import Allowed, check_value, rules_of

SETTINGS = {name: allowed for name, allowed in rules_of(Settings).items() if not name.endswith("_options")}
COURSE = "learn"  # not a paper; its chapters are items too
PAPERS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("*.toml") if file.stem != COURSE))
ALL = (*PAPERS, COURSE)


class Item(NamedTuple):
    """One figure, table, theorem or section of a paper: one notebook, one result."""

    paper: str
    stem: str

    def __str__(self) -> str:
        return f"{self.paper}/{self.stem}"

    @property
    def notebook(self) -> Path:
        """The path of its notebook in a checkout, whether or not the file exists."""
        return files.notebooks_dir() / self.paper / f"{self.stem}.ipynb"


@cache
def load(paper: str) -> dict[str, Any]:
    """A paper's file with its grids and shared settings written out.

    Raises `InputError` for an unknown paper, and for an item whose claim is not quoted with its place.
    """
    choose("paper", paper, ALL)
    content = expand(tomllib.loads((Path(__file__).parent / f"{paper}.toml").read_text(encoding="utf-8")))
    if paper != COURSE:
        check_claims(paper, content["items"])
    return content


def check_claims(paper: str, of: Mapping[str, Mapping]) -> None:
    """Raise `InputError` for an item of a paper without a claim, its quotation or its place."""
    for stem, about in of.items():
        for key in ("claim", "quote", "where"):
            if not about.get(key):
                advice = "give a claim, quote the paper's sentence, and say where it is"
                raise InputError(f"{paper}/{stem} has no `{key}`; {advice}")


def items(pattern: str = "*", of: Sequence[str] = PAPERS) -> list[Item]:
    """The items whose "<paper>/<stem>" a shell pattern matches, or contains as a part.

    Raises `InputError`, which suggests similar names, if nothing matches.

    >>> [str(item) for item in items("fedeq/tab03")]
    ['fedeq/tab03_accuracy']
    """
    everything = [Item(paper, stem) for paper in of for stem in load(paper).get("items", ())]
    pattern = pattern.removesuffix(".ipynb").removeprefix("notebooks/")
    found = [item for item in everything if fnmatch.fnmatch(str(item), pattern) or pattern in str(item)]
    if not found:

        def alike(item: Item) -> tuple[float, ...]:
            """How similar the pattern is to the beginning of the item's name, then to the whole name."""
            pairs = [(name[: len(pattern) + 1], name) for name in (item.stem, str(item))]
            return max(tuple(difflib.SequenceMatcher(None, pattern, part).ratio() for part in pair) for pair in pairs)

        few = everything if len(pattern) < 100 else []  # a longer one is like no name, and takes minutes to compare
        near = sorted((item for item in few if alike(item)[0] > 0.6), key=alike, reverse=True)[:3]
        words = f"similar: {', '.join(map(str, near))}" if near else "`fedlab list` shows all"
        raise InputError(f"no notebook matches {pattern!r:.100}; {words}")
    return found


def item(paper: str, stem: str) -> dict[str, Any]:
    """Title, claim and presets of an item. Raises `InputError` for an unknown one."""
    table = load(paper).get("items", {})
    choose(f"notebook of {paper}", stem, table)
    return table[stem]


def title(item: Item) -> tuple[str, str]:
    """An item's title in two parts: 'Figure 4' and the rest."""
    where, _, what = load(item.paper)["items"][item.stem]["title"].partition(": ")
    return where, what


def headlines() -> list[Item]:
    """The most important item of each paper."""
    return [Item(paper, load(paper)["headline"]) for paper in PAPERS if "headline" in load(paper)]


def link(paper: str) -> str:
    """A Markdown link to a paper, or for an unpublished paper the text that says so."""
    where = load(paper)["link"]
    return f"[{where.removeprefix('https://')}]({where})" if where.startswith("https:") else where


def preset_table(paper: str, stem: str, preset: str) -> dict[str, Any]:
    """The table of an item's preset; if it is `part_of` another item, with that item's base, runs and columns."""
    choose("preset", preset, PRESETS)
    table = item(paper, stem)[preset]
    if "part_of" not in table:
        return table
    whole = item(paper, table["part_of"])[preset]
    without = [*whole.get("without", ()), *table.get("without", ())]
    for name in table.get("columns", ()):
        choose(f"column of {paper}/{table['part_of']} at {preset}", name, whole["columns"])
    columns = {name: whole["columns"][name] for name in table.get("columns", whole["columns"])}
    return whole | table | {"columns": columns, "without": without}


def _known(values: Mapping[str, Any]) -> dict[str, Allowed]:
    """The settings and options of this algorithm and model by name, and what each value may be."""
    model, algorithm = (values.get(name, getattr(Settings, name)) for name in ("model", "algorithm"))
    for name, value in (("model", model), ("algorithm", algorithm)):
        check_value(name, value, *SETTINGS[name])
    return model_options(model) | algorithm_options(algorithm) | SETTINGS


def _settings(values: Mapping[str, Any]) -> Settings:
    """Settings from flat names; other names are options of the algorithm, of the model, or of both."""
    plain = {name: value for name, value in values.items() if name in SETTINGS}
    types = {
        "model_options": model_options(plain.get("model", Settings.model)),
        "algorithm_options": algorithm_options(plain.get("algorithm", Settings.algorithm)),
    }
    options = {kind: {name: values[name] for name in names if name in values} for kind, names in types.items()}
    return Settings(**plain, **options)


def _flat_runs(paper: str, stem: str, preset: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The values of each run by name: those of its preset and column, and its own."""
    table = preset_table(paper, stem, preset)
    runs = table.get("runs", {})
    result = {}
    for column, values in table.get("columns", {"": {}}).items():
        values = merged(table.get("base", {}), values)
        common = {name: value for name, value in values.items() if name not in {"without", *runs}}
        without = {*table.get("without", ()), *values.get("without", ())}
        for name in without:
            choose(f"run to leave out of {paper}/{stem} at {preset}", name, runs)
        for name, own in runs.items():
            if name not in without:
                result[f"{column}/{name}" if column else name] = common, own | values.get(name, {})
    return result


def parameters(paper: str, stem: str, preset: str, **overrides: Any) -> dict[str, Allowed]:
    """The settings and options that at least one run of the item takes, by name, and what each value may be.

    Args:
      overrides: another model or algorithm; then its options are meant.
    """
    known: dict[str, Allowed] = {}
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
        replaced = [f"{kind} {overrides[kind]}" for kind in ("algorithm", "model") if kind in overrides]
        for option in own:
            if option not in takes and replaced:
                raise InputError(
                    f"run {name!r} of {where} sets {option!r}, which {' or '.join(replaced)} has not: it is set "
                    f"for every run; add a run of its own to papers/{paper}.toml"
                )
            choose(f"option of run {name!r} of {where}", option, takes)
        offered |= common.keys()
        used |= values.keys() & takes.keys()
        known |= takes.keys()
        result[name] = _settings({option: value for option, value in values.items() if option in takes})
    runs = preset_table(paper, stem, preset).get("runs", {})
    for option in sorted(offered - used) if result else ():
        choose(f"parameter of {where}", option, known | runs.keys())
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
