"""The table of `gpu.py`: each row is on disk before its contest begins and after it ends."""

import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlab_lite.util import write_atomic

OURS, PEERS = "fedlab_lite", "PyTorch"
LONGEST = 8  # seconds of the runs of a row, after which none begins


class Contest(NamedTuple):
    """What a row times: `run()` returns when the device is idle again."""

    run: Callable[[], Any]
    read: Callable[[Any], dict]  # the numbers by part and path, from what a run returned
    note: str = ""


def seconds_of(run: Callable[[], object], repeats: int, until: float = float("inf")) -> list[float]:
    """The times of at most so many runs, one at least, of which none begins after the deadline.

    They are those of a wall clock between two idle moments of the device. Events on the device would leave out the time
    in which it waits for the host, and that is where the contestants differ.
    """
    taken: list[float] = []
    while not taken or (len(taken) < repeats and time.monotonic() < until):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken


def largest_gap(found: dict, wanted: dict) -> float:
    """The largest difference of two flat states, over the parts that both have."""
    common = found.keys() & wanted.keys()
    return max(float(np.abs(found[part][name] - wanted[part][name]).max()) for part in common for name in found[part])


def _why(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"


class Table:
    """What was measured; every measurement is caught, so that one failure leaves the others.

    Args:
      about: 'device', 'versions', 'precision', and what is 'said' beside them.
      deadline: the moment (`time.monotonic()`) after which no measurement begins.
    """

    def __init__(self, out: Path, about: dict, deadline: float, repeats: int):
        self.out, self.about, self.deadline, self.repeats = out, about, deadline, repeats
        self.ceilings: dict[str, float | str] = {}
        self.rows: list[dict] = []

    def ceiling(self, name: str, measure: Callable[[], float]) -> None:
        """Add what the device reaches at best."""
        try:
            self.ceilings[name] = measure()
        except Exception as error:
            self.ceilings[name] = _why(error)
        self.write()

    def add(self, network: str, who: str, steps: int, make: Callable[[], Contest], wanted: dict | None) -> dict | None:
        """Time a contest; returns the numbers after its first round, or None.

        `wanted`: the numbers that it should have; None where they are not known.
        """
        row: dict[str, Any] = {"network": network, "who": who, "steps": steps, "note": "did not end in time"}
        self.rows.append(row)
        self.write()
        found = None
        try:
            if time.monotonic() > self.deadline:
                raise TooLate("no time left")
            run, read, note = make()
            found = read(run())
            row["gap"] = None if wanted is None else largest_gap(found, wanted)
            taken = seconds_of(run, self.repeats, min(self.deadline, time.monotonic() + LONGEST))
            row |= {"ms": 1e3 * statistics.median(taken), "all_ms": [1e3 * each for each in taken], "note": note}
        except TooLate as error:
            row["note"] = f"not run: {str(error) or 'not compiled in time'}"
        except Exception as error:
            row["note"] = _why(error)
        said = f"{row['ms']:.1f} ms" if "ms" in row else row["note"]
        print(f"{network}, {who}: {said}", flush=True)
        self.write()
        return found

    def write(self) -> None:
        """Write `gpu.json` and `gpu.md`."""
        content = self.about | {"ceilings": self.ceilings, "rows": self.rows}
        write_atomic(self.out / "gpu.json", (json.dumps(content, indent=1) + "\n").encode())
        write_atomic(self.out / "gpu.md", self.markdown().encode())

    def markdown(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.about["versions"].items())
        said = f"Precision of products: {self.about['precision']}. {self.about['said']}".strip()
        lines = [f"{self.about['device']}; {versions}", "", said, "", "| ceiling | |", "| --- | ---: |"]
        for name, value in self.ceilings.items():
            lines.append(f"| {name} | {value if isinstance(value, str) else f'{value:,.1f}'} |")
        lines += ["", "| round | who | ms | client steps/s | time over ours | largest gap | |"]
        lines += ["| --- | --- | ---: | ---: | ---: | ---: | --- |"]
        ours = {row["network"]: row["ms"] for row in self.rows if row["who"] == OURS and "ms" in row}
        for row in self.rows:
            ms, base, gap = row.get("ms"), ours.get(row["network"]), row.get("gap")
            cells = ["–"] * 3 if ms is None else [f"{ms:.1f}", f"{1e3 * row['steps'] / ms:,.0f}"]
            cells += [] if ms is None else [f"{ms / base:.2f}" if base else "–"]
            cells += ["–" if gap is None else f"{gap:.0e}", row["note"]]
            lines.append(f"| {row['network']} | {row['who']} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"
