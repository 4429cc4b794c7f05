"""Save a figure with its metrics, verdict and provenance, and read such results.

A result is three files: `<stem>.svg`, `.png` and `.json`. They are written to `build/figures/<preset>/<paper>/`. With
`--commit` they are written to `figures/<paper>/`, which git tracks, together with the runs behind them. A run with
other parameters than the preset's has a name of its own in `build/`, see `variants`.
"""

import hashlib
import io
import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlab_lite.engine import History
from fedlab_lite.papers import presets, provenance, regime, scope, variants
from fedlab_lite.papers.first_cells import changes
from fedlab_lite.papers.outcome import OUTCOMES, Verdict
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.recorded import read_result
from fedlab_lite.runs import run_names, store
from fedlab_lite.util import InputError, choose, files
from fedlab_lite.util.progress import switched_on
from fedlab_lite.util.text import say

SHOWN = 6  # the most numbers per item on a results page


def save_figure(
    fig,
    paper: str,
    item: str,
    *,
    verdict: Verdict,
    preset: str,
    metrics: Mapping[str, Mapping[str, float | int | None]],
    shown: Sequence[str] = (),
    departures: Sequence[str] = (),
    histories: Mapping[str, History] | None = None,
    data_source: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    published: Sequence[Mapping[str, Any]] | None = None,
    also: Mapping[str, Verdict] | None = None,
) -> Path:
    """Write a result, print its location, and return its JSON; the same result gives the same bytes.

    A committed figure of a larger preset is never replaced by one of a smaller preset.

    Args:
      verdict: from `verdicts`. `papers.scope` says which word of the paper it allows, which is written on the figure.
      metrics: name -> {'mean', 'std', 'n'}, in the unit of the published number of the same name. std is 0.0 for an
        exact number, and None if the spread is unknown.
      shown: the most important metrics, at most six, for the results page.
      departures: how this differs from the paper.
      histories: the runs behind the result. They give versions, device and seconds; also data and seeds, unless
        `data_source` and `seeds` are given.
      parameters: the values of the notebook's parameters in this run.
      published: the published numbers for the same setting; None: those of the item's TOML entry.
      also: verdicts on what this suite asks besides the paper's claim, by name.

    Raises: `InputError` (unknown names, metrics without mean, std and n), `OutputError` (no file is half-written),
      `CorruptFileError` (the existing result cannot be read).
    """
    runs = list((histories or {}).values())
    choose("preset", preset, presets.PRESETS)
    choose("outcome", verdict.outcome, OUTCOMES)
    for name, value in metrics.items():
        if set(value) != {"mean", "std", "n"}:
            found = ", ".join(sorted(value)) or "nothing"
            raise InputError(f"metric {name!r} needs exactly mean, std and n, got {found}")
    for name in shown:
        choose("metric to show", name, metrics)
    if len(shown) > SHOWN:
        raise InputError(f"{len(shown)} metrics to show; choose at most {SHOWN} for the page (the JSON has all)")
    printed = presets.published(paper, item)
    verdict, also, close = scope.judge(Item(paper, item), preset, verdict, histories or {}, printed, also or {})
    home, note = _home(paper, item, preset)
    name = variants.name_of(item, variants.changed())
    result = _record(
        Item(paper, item),
        preset,
        verdict,
        scope=close,
        distance=scope.distance(Item(paper, item), [run.settings for run in runs if run.settings]),
        rivals=regime.in_words(Item(paper, item), preset, histories or {}, printed, verdict.comparisons),
        also=scope.told_of(also, preset),
        data_source=", ".join(sorted({run.data_source for run in runs})) if data_source is None else data_source,
        parameters=parameters or {},
        seeds=sorted({seed for run in runs for seed in run.seeds}) if seeds is None else seeds,
        metrics=metrics,
        shown=shown,
        constant_answer={name: 100 * run.constant for name, run in (histories or {}).items()},
        published=printed if published is None else published,
        departures=[*departures, *provenance.departures(histories or {})],
        provenance=provenance.of_runs(histories or {}),
    )
    names = sorted({name for run in runs for name in run_names(run) if store.find(name)})
    result |= {"runs": names} if names else {}
    with files.only_one(home):  # another notebook of this paper would remove runs that this one is about to name
        existing = read_result(home / f"{name}.json")
        if existing and existing | {"provenance": None} == result | {"provenance": None}:
            result["provenance"] = existing["provenance"]  # the same result: keep the first run's provenance
        contents = _drawn(fig, result) | {"json": _json(result)}
        paths = {kind: files.write_atomic(home / f"{name}.{kind}", content) for kind, content in contents.items()}
        if home.parent == files.figures_dir():
            _keep_runs(home, names)
    say(f"{result['word']}: {result['reason']}\n{home / name}.svg, .png, .json{note}")
    return paths["json"]


def save_failure(item: Item, preset: str, parameters: Mapping[str, Any], error: str) -> Path:
    """Record in the uncommitted result that a notebook failed; this replaces any earlier verdict there."""
    file = _draft(item.paper, preset) / f"{variants.name_of(item.stem, variants.changed())}.json"
    verdict = Verdict("undecided", f"the notebook failed: {error}")
    return files.write_atomic(file, _json(_record(item, preset, verdict, parameters=parameters)))


def _record(item: Item, preset: str, verdict: Verdict, **found: Any) -> dict[str, Any]:
    """The content of a result's JSON; fields without a value are empty."""
    nothing: dict[str, Any] = {"data_source": "", "parameters": {}, "seeds": [], "metrics": {}, "shown": []}
    nothing |= {"constant_answer": {}, "published": [], "departures": [], "rivals": [], "distance": {}, "also": {}}
    table, close = presets.item(*item), found.get("scope", "stand-in")
    about = {"paper": item.paper, "item": item.stem, "preset": preset, "scope": close}
    about |= {name: table.get(name, "") for name in ("claim", "quote", "where")}
    about |= {"outcome": verdict.outcome, "reason": scope.told(verdict, preset), "notebook_hash": notebook_hash(item)}
    about["word"] = scope.word(verdict.outcome, close, preset, verdict.readings)
    about["comparisons"] = scope.recorded(verdict)
    about["readings"] = scope.told_of(verdict.readings, preset)
    about |= {"changed": changed} if (changed := variants.changed()) else {}
    result = _plain(about | nothing | found | {"provenance": found.get("provenance") or provenance.of_runs({})})
    scope.check(result)
    return result


def of_run(item: Item, preset: str) -> Path:
    """The JSON of the run of an item in this process, whose picture lies beside it."""
    return _home(item.paper, item.stem, preset)[0] / f"{variants.name_of(item.stem, variants.changed())}.json"


def _draft(paper: str, preset: str) -> Path:
    return files.drafts_dir() / preset / paper


def _home(paper: str, item: str, preset: str) -> tuple[Path, str]:
    """The folder for a result, and a note if it differs from the requested one."""
    committed, draft = files.figures_dir() / paper, _draft(paper, preset)
    if not switched_on("FEDLAB_COMMIT"):
        return draft, ""
    existing = read_result(committed / f"{item}.json")
    if existing and presets.PRESETS.index(existing["preset"]) > presets.PRESETS.index(preset):
        return draft, f"; {committed} keeps the figure of the larger preset {existing['preset']!r}"
    return committed, ""


# Code that is the same in every notebook and does not affect a number unless a parameter is overridden.
_ALIKE = re.compile(r"\noverrides: dict = \{\}[^\n\0]*| \| overrides$|^options \|= overrides\n", re.MULTILINE)


def notebook_hash(item: Item) -> str | None:
    """A hash of the code of an item's notebook, without `overrides`; None if there is none (installed package)."""
    if not item.notebook.exists():
        return None
    cells = files.read_notebook(item.notebook)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return hashlib.sha256(_ALIKE.sub("", "\0".join(code)).encode()).hexdigest()[:16]


def _drawn(fig, result: Mapping[str, Any]) -> dict[str, bytes]:
    import matplotlib as mpl

    own = result["data_source"] if "own file" in result["data_source"] else ""  # neither published nor embedded data
    changed = textwrap.shorten(changes(result), 60, placeholder=" …")
    said = " · ".join(filter(None, (own, result["preset"], changed, result["scope"], result["word"])))
    if (layout := fig.get_layout_engine()) is not None:
        room = 0.12 / fig.get_figheight()  # a line of 7 points below the panels
        layout.set(rect=(0, room, 1, 1 - room))
    stamp = fig.text(0.995, 0.03 / fig.get_figheight(), said, ha="right", va="bottom", fontsize=7, color="#666666")
    stamp.set_parse_math(False)  # of a data set's name
    contents = {}
    with mpl.rc_context({"svg.hashsalt": f"{result['paper']}/{result['item']}"}):
        for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            fig.savefig(buffer, format=kind, metadata=metadata)
            contents[kind] = buffer.getvalue()
    stamp.remove()
    return contents


def _json(result: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)}\n".encode()


def _plain(value):
    """Convert a value to JSON types: floats to 6 digits, None if not finite, lists for arrays and tuples."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _keep_runs(folder: Path, names: Sequence[str]) -> None:
    """Copy these runs to the figures' folder, and delete runs that no figure there needs any more."""
    store.publish(names, folder / "runs")
    needed = {name for file in folder.glob("*.json") for name in (read_result(file) or {}).get("runs", ())}
    for file in (folder / "runs").glob("*.npz"):
        if file.name.partition(".")[0] not in needed:
            file.unlink()


# --- reading ------------------------------------------------------------------------------------------------------


def committed(of: Sequence[str] = presets.PAPERS) -> dict[Item, dict[str, Any]]:
    """The committed results by item, from `figures/`: for each item the largest preset that was run."""
    return _in(files.figures_dir(), of)


def drafts() -> dict[Item, dict[str, Any]]:
    """The uncommitted results of this machine by item; if there are several presets, the largest.

    A run with changed parameters is an item of its own, with the stem of its files.
    """
    return {item: result for preset in presets.PRESETS for item, result in _in(files.drafts_dir() / preset).items()}


def _in(folder: Path, of: Sequence[str] = presets.PAPERS) -> dict[Item, dict[str, Any]]:
    found = {}
    for paper, stem in presets.items(of=of):
        for file in [folder / paper / f"{stem}.json", *sorted((folder / paper).glob(f"{stem},*.json"))]:
            found[Item(paper, file.stem)] = read_result(file)
    return {item: result for item, result in found.items() if result}


def is_stale(result: Mapping[str, Any]) -> bool:
    """Whether the notebook's code has changed since the result was made."""
    return result["notebook_hash"] != notebook_hash(Item(result["paper"], result["item"]))


def mark_stale(item: Item) -> None:
    """Mark a committed result as stale if its notebook changed; its outcome becomes undecided."""
    file = files.figures_dir() / item.paper / f"{item.stem}.json"
    result = read_result(file)
    if result and is_stale(result):
        reason = "drawn by an earlier version of the notebook, and its runs are not kept: run it again to decide"
        undecided = {"stale": True, "outcome": "undecided", "word": "undecided", "reason": reason}
        files.write_atomic(file, _json(result | undecided))


def match(metrics: Mapping[str, Mapping], published: Iterable[Mapping]) -> list[dict[str, Any]]:
    """Rows with 'name', 'ours', 'published' and 'where', for metrics with a published number of the same name."""
    printed = {row["name"]: row for row in published}
    return [
        {"name": name, "ours": value["mean"], "published": printed[name]["value"], "where": printed[name]["where"]}
        for name, value in metrics.items()
        if name in printed
    ]
