"""The order in which a short loan of a machine computes runs: a claim's runs together, the cheapest undecided first."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedlab_lite.papers import floors, presets, results
from fedlab_lite.papers.presets import Item
from fedlab_lite.runs import missing
from fedlab_lite.runs.jobs import Program
from fedlab_lite.util import choose


def programs(
    items: Sequence[Item], preset: str, values: Mapping[str, Any], *, only: str | None = None, force: bool = False
) -> tuple[list[Program], list[str]]:
    """The programs that items lack at a preset, those of undecided claims first, then by time; each run once.

    Args:
      only: an algorithm; runs of others are left out.

    Returns: the programs; and for each data set that this machine lacks the message that says so.
    Raises: `InputError` for an algorithm that no run has.
    """
    of = {item: presets.settings(*item, preset, **values) for item in items}
    if only is not None:
        choose("algorithm of these runs", only, {run.algorithm for runs in of.values() for run in runs.values()})
    decided = {item: result["outcome"] != "undecided" for item, result in results.committed().items()}
    found, names = [], set()
    lacking: list[str] = []
    for item in sorted(items, key=lambda item: (decided.get(item, False), floors.minutes(item, preset) or 0.0, item)):
        runs = {name: run for name, run in of[item].items() if only in (None, run.algorithm)}
        for program in missing(runs, force=force, lacking=lacking):
            rest = [run for run in program if run[0] not in names]
            names |= {name for name, *_ in rest}
            if rest:
                found.append(Program(rest, presets.item(*item).get("final_states", False)))
    return found, lacking
