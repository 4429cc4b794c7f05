"""Text generated from results: one line per claim, results pages, tables of the READMEs, first cells of notebooks."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedlab_lite.papers import floors, notebooks, regime, results
from fedlab_lite.papers import presets as papers
from fedlab_lite.papers.first_cells import changes, verdict_of
from fedlab_lite.papers.names import MOMENTS, plain_key, plain_name
from fedlab_lite.papers.presets import Item, title
from fedlab_lite.papers.scope import WORDS
from fedlab_lite.papers.variants import given
from fedlab_lite.util import InputError, files
from fedlab_lite.util.text import code, markdown

Result = dict[str, Any]
PICTURE = "*The picture*: "  # the line of a notebook's first cell that describes its picture begins so
FIELDS = {"train_size": "training rows", "test_size": "test rows", "num_clients": "clients", "num_rounds": "rounds"}
FIELDS |= {"shared_size": "shared rows", "dataset": "data", "model": "network", "validation_size": "validation rows"}
ERRORS = "In tables ± is one standard error over seeds, in reasons one over seeds, clients and test rows."
TERMS = "[The terms](../../CONTRIBUTING.md#terms) explain *as claimed*, *asked*, *visible*, *reading* and *stand-in*."


def _number(value) -> str:
    if value is None:
        return "not finite"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def interval(metric: Mapping[str, Any]) -> str:
    """A metric's mean with its standard error over seeds, if there are several seeds.

    >>> interval({"mean": 81.6083, "std": 1.946, "n": 3}), interval({"mean": 5, "std": 0.0, "n": 1})
    ('81.61 ± 1.1', '5')
    """
    value = _number(metric["mean"])
    return f"{value} ± {metric['std'] / metric['n'] ** 0.5:.2g}" if metric["std"] and metric["n"] > 1 else value


def numbers(result: Result) -> list[tuple[str, str, str]]:
    """Name, our value and published value of each metric that a result shows (–: the paper prints none).

    Shown are the metrics that the notebook chose; if it chose none, the first ones. A method has a row for each moment
    of a round at which it was judged.
    """
    printed = {row["name"]: row for row in result["published"]}
    chosen = result["shown"] or sorted(result["metrics"], key=lambda name: name not in printed)[: results.SHOWN]
    rows = []
    for name in chosen:
        moments = [f"{name}/{moment}" for moment in MOMENTS if f"{name}/{moment}" in result["metrics"]]
        for each in moments or [name]:
            value = _number(printed[name]["value"]) if name in printed else "–"
            rows.append((each, interval(result["metrics"][each]), value))
    return rows


def duration(minutes: float | None) -> str:
    """Minutes in words.

    >>> [duration(minutes) for minutes in (0.7, 11, 120, 203, 900, None)]
    ['42 s', '11 min', '2 h', '3.4 h', '15 h', 'not counted']
    """
    if minutes is None:
        return "not counted"
    if minutes < 120:
        return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"
    return f"{minutes / 60:.1f}".removesuffix(".0") + " h" if minutes < 600 else f"{minutes / 60:.0f} h"


def time_of(item: Item, preset: str) -> str:
    """The time of a notebook at a preset, with ≥ where it is a floor, which runs need at least."""
    floor = papers.preset_table(*item, preset)["minutes"] is None
    minutes = floors.minutes(item, preset)
    return f"{'≥ ' if floor and minutes is not None else ''}{duration(minutes)}"


# --- the terminal -------------------------------------------------------------------------------------------------


def printed(pattern: str = "*", *, own: bool = False, full: bool = False) -> list[str]:
    """The lines of the results whose notebooks match: of the committed ones and of this machine's own, or of `own`.

    Raises `InputError` if no notebook matches, or if there is no result.
    """
    items = papers.items(pattern)
    committed, drafts = ({} if own else results.committed()), results.drafts()
    if not (committed or drafts):
        advice = files.or_clone("`fedlab run --headline` makes some")
        raise InputError(f"no results in {files.drafts_dir()} yet; {advice}")
    parts = [{k: v for k, v in found.items() if Item(v["paper"], v["item"]) in items} for found in (committed, drafts)]
    if not any(parts):
        raise InputError(f"no results of {pattern} yet; `fedlab run {pattern}` makes some")
    return lines(*parts, full=full)


def lines(found: Mapping[Item, Result], own: Mapping[Item, Result] | None = None, *, full: bool = False) -> list[str]:
    """One line per result: notebook, preset, verdict and reason; with `full` all numbers follow, ours / published.

    A run with changed parameters has its own line, which says them.

    Args:
      own: results of this machine, which follow the committed ones of their notebooks and are marked.
    """
    order = {item: place for place, item in enumerate(papers.items(of=papers.ALL))}
    rows = [(result, "") for result in found.values()] + [
        (result, "own run" if found else "") for result in (own or {}).values()
    ]
    rows.sort(key=lambda row: order[Item(row[0]["paper"], row[0]["item"])])
    longest = max(len(f"{result['paper']}/{result['item']}") for result, _ in rows)
    said = []
    for result, mark in rows:
        item = f"{result['paper']}/{result['item']}"
        words = " ".join(filter(None, (mark, changes(result))))
        reason = ": ".join(filter(None, (words, result["reason"])))
        said.append(f"{item:<{longest}}  {result['preset']:<6}  {result['word']:<12}  {result['scope']:<8}  {reason}")
        if full:
            values = numbers(result | {"shown": list(result["metrics"])})
            said.append(f"    {result['claim']}")
            said += [f"    {name}: {ours} / {published}" for name, ours, published in values]
    return said


# --- pages --------------------------------------------------------------------------------------------------------


def claim_of(item: Item) -> str:
    """The paper's sentence, and where it stands."""
    about = papers.item(*item)
    return f"> “{about['quote']}” ({about['where']})"


def outcome(result: Result | None) -> str:
    """The word, the scope and the preset of a committed result in Markdown."""
    if result is None:
        return "not yet run"
    stale = " (stale)" if result.get("stale") else ""
    return markdown(f"{result['word']}{stale} ({result['scope']}, {result['preset']})")


def caption(item: Item) -> str:
    """What a notebook says of its picture, in one sentence of its first cell; empty if it says nothing.

    >>> caption(Item("fl_deq", "fig03_cnn_layers"))
    'Accuracy over the number of convolutions, with the number of parameters beside each marker.'
    """
    first = notebooks.source(files.read_notebook(notebooks.path(item))["cells"][0])
    return next((line.removeprefix(PICTURE) for line in first.splitlines() if line.startswith(PICTURE)), "")


def groups(found: Mapping[Item, Result]) -> list[set[Item]]:
    """Trained results that rest on common runs, directly or through others; one set per group."""
    joined: list[tuple[set[Item], set[str]]] = []
    for item, result in found.items():
        if runs := set(result.get("runs", ())):
            near = [each for each in joined if each[1] & runs]
            joined = [each for each in joined if not each[1] & runs]
            joined.append(({item}.union(*(each[0] for each in near)), runs.union(*(each[1] for each in near))))
    return [items for items, _ in joined]


def page(paper: str, found: Mapping[Item, Result]) -> str:
    """The text of `figures/<paper>/README.md`: claim, picture, verdict, numbers and command of each result."""
    about, shared = papers.load(paper), groups(found)
    lines = [f"# {about['title']}", "", f"{about['authors']}. {papers.link(paper)}", ""]
    lines += [f"Generated by `report --write` from the JSON files here. {ERRORS}", ""]
    items = papers.items(f"{paper}/*")
    lines += [TERMS, "", "| item | what it shows | outcome |", "| --- | --- | --- |"]
    for item in items:
        where, what = title(item)
        lines.append(f"| [{where}](#{anchor(item)}) | {what} | {outcome(found.get(item))} |")
    lines.append("")
    for item in items:
        (where, what), result = title(item), found.get(item)
        lines += [f"## {where}: {what}", "", claim_of(item), "", f"{verdict_of(result)}.", ""]
        if result:
            lines += [f"![{where}]({item.stem}.png)", "", f"*{caption(item)}*", ""]
            rivals = "; ".join(said.removeprefix(f"{regime.OTHERWISE}: ") for said in result["rivals"])
            lines += [*_beside(result), *([markdown(f"The order of rivals: {rivals}."), ""] if rivals else [])]
            lines += [*_numbers_table(result), *_distance(result), *_made(item, result)]
            same = sorted(title(each)[0] for items in shared if item in items for each in items - {item})
            lines += [f"Rests on the same runs as {', '.join(same)}.", ""] if same else []
        lines += [f"[notebook](../../notebooks/{paper}/{item.stem}.ipynb)", ""]
    return "\n".join(lines)


def anchor(item: Item) -> str:
    """The anchor that GitHub gives to the heading of an item on its page of results.

    >>> anchor(Item("fedeq", "fig05_rho"))
    'figure-5-what-the-penalty-rho-does-to-fedeqs-convergence-and-to-agreement'
    """
    heading = ": ".join(title(item)).lower().replace(" ", "-")
    return "".join(letter for letter in heading if letter.isalnum() or letter in "-_")


def _row(*cells: object) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(map(markdown, cells))} |"


def _beside(result: Result) -> list[str]:
    """Tables of the readings of the paper, and of what this suite asks besides."""
    lines = []
    for head, rows in (("reading of the paper", result["readings"]), ("also asked", result["also"])):
        if rows:
            told = [_row(name, each["outcome"], each["reason"]) for name, each in rows.items()]
            lines += [_row(head, "outcome", "reason"), "| --- | --- | --- |", *told, ""]
    return lines


def _numbers_table(result: Result) -> list[str]:
    rows = [(plain_key(name), ours, published) for name, ours, published in numbers(result)]
    constant = [value for value in result["constant_answer"].values() if value is not None]
    if constant:
        low, high = _number(min(constant)), _number(max(constant))
        rows.append(("majority baseline (%)", low if low == high else f"{low} to {high}", "–"))
    same = result["scope"] in ("counted", "paper")
    head = ["number", "ours", "published" if same else "paper, at its own size"]
    shown = 3 if any(row[2] != "–" for row in rows) else 2  # where the paper prints none, its column says nothing
    return [_row(*head[:shown]), "| --- " * shown + "|", *(_row(*row[:shown]) for row in rows), ""] if rows else []


def _distance(result: Result) -> list[str]:
    """A table of the settings in which a result differs from the preset `paper`, and a line of what else departs."""

    def told(name: str, values: list) -> str:
        none = "all" if name in {*FIELDS, "cohort_size"} else "none"
        unset = {"None": none} | ({"0": "as printed"} if name.endswith(".width") else {})  # of the paper's table
        shown = [unset.get(str(value)) or plain_name(_number(value)) for value in values]
        return ", ".join(shown if len(shown) <= 4 else [*shown[:3], "…"]) or "–"

    def field(name: str) -> str:
        kind, _, option = name.rpartition(".")
        return f"{plain_name(kind)}: {option.replace('_', ' ')}" if kind else FIELDS.get(name, plain_name(name))

    apart = result["distance"].items()
    rows = [_row(field(name), told(name, each["here"]), told(name, each["paper"])) for name, each in apart]
    table = ["| distance | here | preset `paper` |", "| --- | --- | --- |", *rows, ""] if rows else []
    said = "; ".join(result["departures"])
    return [*table, *([markdown(f"Departures: {said}."), ""] if said else [])]


def _made(item: Item, result: Result) -> list[str]:
    """Lines that state preset, data, hardware, time and command of a result."""
    made = result["provenance"]
    time = f", {duration(made['seconds'] / 60)} of training, added up over the runs" if made["seconds"] else ""
    known = notebooks.parameters(notebooks.path(item))
    asked = {name: value for name, value in result["parameters"].items() if name in known and name != "preset"}
    asked = {name: value for name, value in asked.items() if value not in (None, known[name].default)}
    command = f"fedlab run {item} --preset {result['preset']} {given(asked)}".rstrip()
    defaults = {"float32" if device.endswith("cpu") else "tf32" for device in made["device"].split(", ")}  # of JAX
    precision = made.get("precision", ", ".join(sorted(defaults)))
    if by := made.get("by_precision"):
        precision = ", ".join(f"{kind} ({'; '.join(map(plain_name, names))})" for kind, names in by.items())
    rounded = "" if precision == "float32" else f" Matrix products: {precision}."
    line = f"Preset: {result['preset']}. Hardware: {made['device']}{time}.{rounded} Data: {result['data_source']}."
    return [markdown(line), "", code(command), ""]


def papers_markdown(found: Mapping[Item, Result]) -> str:
    """The table of papers for README.md, with the number of items per word and of groups of runs."""
    words = [word for word in WORDS if any(result["word"] == word for result in found.values())]
    lines = [f"| paper | {' | '.join(words)} | not yet run | groups of runs |", "| --- " * (len(words) + 3) + "|"]
    for paper in papers.PAPERS:
        about, items = papers.load(paper), papers.items(f"{paper}/*")
        count = Counter(found[item]["word"] if item in found else "" for item in items)
        own = len(groups({item: found[item] for item in items if item in found}))
        link = f", [paper]({about['link']})" if about["link"].startswith("https:") else ""
        said = f"[{about['name']}](figures/{paper}/README.md){link}"
        lines.append(f"| {said} | {' | '.join(str(count[word]) for word in [*words, ''])} | {own} |")
    return "\n".join(lines)


def notebooks_markdown(found: Mapping[Item, Result]) -> str:
    """The table of notebooks for notebooks/README.md."""
    presets = " | ".join(papers.PRESETS)
    lines = [f"| notebook | claim | {presets} | verdict |", "| --- " * 6 + "|"]
    for item in papers.items():
        times = " | ".join(time_of(item, preset) for preset in papers.PRESETS)
        link = f"[{papers.load(item.paper)['name']}, {title(item)[0]}]({item.paper}/{item.stem}.ipynb)"
        result = found.get(item)
        verdict = f"[{result['word']}](../figures/{item.paper}/README.md)" if result else "not yet run"
        lines.append(f"| {link} | {papers.item(*item)['claim']} | {times} | {verdict} |")
    return "\n".join(lines)


def course_markdown() -> str:
    """The table of lessons for notebooks/README.md: question, required lessons, reading time and running time."""
    lines = ["| lesson | question that it answers | requires | reading | running |", "| --- " * 5 + "|"]
    for item in (item for item in papers.items(of=(papers.COURSE,)) if item.notebook.exists()):
        about, (where, what) = papers.item(*item), title(item)
        after = ", ".join(map(str, about["needs"])) or "–"
        link = f"[{where}: {what}]({item.paper}/{item.stem}.ipynb)"
        lines.append(f"| {link} | {about['question']} | {after} | {about['reading']} min | {time_of(item, 'quick')} |")
    return "\n".join(lines)
