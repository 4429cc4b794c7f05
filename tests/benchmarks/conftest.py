"""Takes the measurements of `make bench` and prints them as ratios.

pytest-benchmark measures one function a test, and a machine drifts by more than what is to be compared. So each timed
run of a contestant comes right after a run of ours, and what counts is the median of the ratios of such neighbours.
"""

import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from networks import NETWORKS

from fedlab_lite.nn import MODELS

INSTALL = 'pip install -e ".[bench]"'
PAUSE = 0.005  # seconds before each run, for the threads of the one before to fall asleep


class Row(NamedTuple):
    group: str
    who: str
    seconds: float  # median, of one step or one pass
    ratios: list[float]  # to ours, run by run
    note: str


ROWS = pytest.StashKey[list[Row]]()
MISSING = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS], config.stash[MISSING] = [], set()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` sees the checks that our contestants run, `make bench` the rest; the peers need their extra."""
    if collection_path.parent != Path(__file__).parent:
        return None
    timing = config.getoption("benchmark_only", False)
    wanted = ("test_client_steps", "test_equilibrium_layer") if timing else ("test_contestants", "test_gpu_bench")
    return None if collection_path.stem in wanted else True


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in NETWORKS.items():
        monkeypatch.setitem(MODELS, name, entry)


@pytest.fixture
def contestant(pytestconfig: pytest.Config) -> Callable:
    """`contestant('module:function')`, or a skip where the module's libraries are not installed."""

    def load(name: str) -> Callable:
        module, function = name.split(":")
        try:
            return getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            pytestconfig.stash[MISSING].add(error.name)
            return pytest.skip(f"{error.name} is not installed: {INSTALL}")

    return load


@pytest.fixture
def measure(benchmark, pytestconfig: pytest.Config) -> Callable:
    """`measure(run, ours, ...)` times `run` in turn with `ours` and keeps a row of the table."""

    def timed(
        run: Callable,
        ours: Callable,
        *,
        group: str,
        who: str,
        rounds: int,
        steps: int = 1,
        our_steps: int = 1,
        note: str = "",
    ) -> None:
        taken = []

        def ours_first():
            time.sleep(PAUSE)
            start = time.perf_counter()
            ours()
            taken.append(time.perf_counter() - start)
            time.sleep(PAUSE)

        benchmark.group = group
        benchmark.pedantic(run, setup=ours_first, rounds=rounds, warmup_rounds=1)
        if benchmark.stats is None:  # --benchmark-disable
            return
        seconds = benchmark.stats.stats.data
        ratios = [(a / steps) / (b / our_steps) for a, b in zip(seconds, taken[1:], strict=True)]
        row = Row(group, who, statistics.median(seconds) / steps, ratios, note)
        pytestconfig.stash[ROWS].append(row)
        benchmark.extra_info |= {"who": who, "steps_per_second": 1 / row.seconds, "ratio": statistics.median(ratios)}
        benchmark.extra_info |= {"note": note} if note else {}

    return timed


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if rows:
        terminalreporter.section("time over ours: median of runs taken in turn (their middle half)")
    for group in dict.fromkeys(row.group for row in rows):
        terminalreporter.write_line(f"\n{group}")
        for row in (row for row in rows if row.group == group):
            low, median, high = quartiles(row.ratios)
            terminalreporter.write_line(
                f"  {row.who:34s} {1e3 * row.seconds:9.3f} ms {1 / row.seconds:9.1f} /s   "
                f"x {median:6.2f} ({low:.2f} to {high:.2f})   {row.note}".rstrip()
            )
    if missing := config.stash[MISSING]:
        terminalreporter.write_line(f"\nPeers left out, {', '.join(sorted(missing))} not installed: {INSTALL}")
