"""Where a result comes from: what computed its runs, and what about these runs its page must say."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedlab_lite.engine import History
from fedlab_lite.papers.names import plain_key
from fedlab_lite.util.jax_setup import describe_machine, joined

NAMED = 3  # the most runs that a departure names


def of_runs(histories: Mapping[str, History]) -> dict[str, Any]:
    """Versions, device, precision and seconds of the runs behind a result; of this machine, if there are none."""
    runs = list(histories.values())
    made = joined([run.made for run in runs]) if runs else describe_machine()
    seconds = sum(run.seconds for run in runs) if runs else None
    if len(by := _by_precision(histories)) > 1:
        made["by_precision"] = by
    return made | {"seconds": seconds, "package_version": made["versions"]["fedlab_lite"]}


def departures(histories: Mapping[str, History]) -> list[str]:
    """What readers must know of these runs: which of them diverged, and which were computed with another precision."""
    lost = [name for name, run in histories.items() if any(run.diverged)]
    found = [f"diverged: {_listed(lost)}"] if lost else []
    by = sorted(_by_precision(histories).items(), key=lambda each: (len(each[1]), each[0]))
    if len(by) > 1:
        said = [f"{precision} in {_listed(names)}" for precision, names in by[:-1]]
        found.append(f"matrix products are {', '.join(said)}, and {by[-1][0]} in all others")
    return found


def _by_precision(histories: Mapping[str, History]) -> dict[str, list[str]]:
    """The names of the runs with each precision of matrix products; a column where all runs have the same is one."""
    columns: dict[str, dict[str, str]] = {}
    for name, run in histories.items():
        columns.setdefault(name.rpartition("/")[0], {})[name] = run.precision
    found: dict[str, list[str]] = {}
    for column, runs in columns.items():
        alike = column and len(set(runs.values())) == 1
        for name, precision in ({column: min(runs.values())} if alike else runs).items():
            found.setdefault(precision, []).append(name)
    return found


def _listed(names: Sequence[str]) -> str:
    """Runs by their display names, the first three.

    >>> _listed(["motion_ring_0.3/dpsgd", "iid/deq_1"])
    'D-PSGD (motion, ring, 0.3), DEQ, 1 (iid)'
    >>> _listed(["fedavg", "local", "fedeq", "ditto", "fedrep"])
    'FedAvg, Local, FeDEQ and 2 more'
    """
    more = len(names) - NAMED
    return ", ".join(map(plain_key, names[:NAMED])) + (f" and {more} more" if more > 0 else "")
