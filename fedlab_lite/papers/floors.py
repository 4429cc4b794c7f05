"""The floors of all items at `paper`: the work that their runs have to do, stored in `floors.json`.

`fedlab list --floors --write` counts it anew; a test names the items whose settings have changed since.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fedlab_lite.engine.work import Work
from fedlab_lite.papers import presets
from fedlab_lite.papers.presets import Item
from fedlab_lite.runs import Settings
from fedlab_lite.runs.floors import TFLOPS, floor
from fedlab_lite.util import files, write_atomic

FILE = Path(__file__).with_name("floors.json")


class Floor(NamedTuple):
    """The work of an item's runs at `paper`, over all their seeds."""

    settings: str  # a hash of the settings that were counted
    trajectories: int
    pflop: float  # 10^15 operations in matrix products
    padding: float  # operations executed over those that count
    steps: float  # iterations of innermost loops, one after the other, if all trajectories run one after the other
    terabytes: float  # 10^12 bytes of the products' operands and results
    memory: float  # 10^9 bytes of intermediate results at the peak, of the run that takes most; an upper bound

    def minutes(self, tflops: float = TFLOPS) -> float:
        """The minutes that the products take at so many TFLOP/s."""
        return self.pflop * 1e3 / tflops / 60


def stored(item: Item) -> Floor | None:
    """The floor of an item; None for one that trains nothing, or was not counted with its present settings."""
    found = _read().get(str(item))
    return Floor(**found) if found and found["settings"] == _hash(presets.settings(*item, "paper")) else None


def fresh(item: Item) -> bool:
    """Whether an item's stored floor is that of its present settings."""
    return stored(item) is not None or not presets.settings(*item, "paper")


def count(item: Item) -> Floor | None:
    """Count the floor of an item; None for one that trains nothing."""
    runs = presets.settings(*item, "paper")
    if not runs:
        return None
    total, trajectories = Work(), 0
    for settings in runs.values():
        total = total.then(_floor(_alike(settings)).times(len(settings.seeds)))
        trajectories += len(settings.seeds)
    numbers = [total.flops / 1e15, total.flops / total.useful, total.steps, total.bytes / 1e12, total.memory / 1e9]
    return Floor(_hash(runs), trajectories, *(float(f"{number:.3g}") for number in numbers))


def minutes(item: Item, preset: str) -> float | None:
    """The minutes that an item takes: what its preset says, or its floor; None for one that is yet to be counted."""
    said = presets.preset_table(*item, preset)["minutes"]
    if said is not None:
        return said
    floor = stored(item)
    return floor and floor.minutes()


def write(items: Sequence[Item]) -> Path:
    """Count the floors of these items and store them, one after the other."""
    for item in items:
        found = count(item)
        others = {name: each for name, each in _read().items() if name != str(item)}
        kept = others | ({str(item): found._asdict()} if found else {})
        write_atomic(FILE, (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode())
    return FILE


def _read() -> dict[str, dict]:
    return files.read_json(FILE) if FILE.exists() else {}


def _hash(runs: dict[str, Settings]) -> str:
    text = json.dumps(sorted([settings.canonical(), settings.seeds] for settings in runs.values()))
    return hashlib.sha256(text.encode()).hexdigest()[:16] if runs else ""


@cache
def _floor(settings: Settings) -> Work:
    return floor(settings)


def _alike(settings: Settings) -> Settings:
    """The settings without what changes no amount of work: step sizes, penalties, seeds."""
    kept = tuple((name, value) for name, value in settings.algorithm_options if not isinstance(value, float))
    return replace(settings, algorithm_options=kept, seeds=(0,), graph_seed=0)
