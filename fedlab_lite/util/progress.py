"""Progress reporting: a bar in a terminal or notebook, one line per minute in a log, nothing in batch runs.

In a notebook that somebody has open, the bar of a training also has a curve of the headline metric so far.
"""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedlab_lite.util.text import html, plain, say

SECONDS = 60.0  # between two lines in a log
PAUSE = 0.2  # seconds between two pictures in a notebook; a browser needs no more
WIDTH, HEIGHT, POINTS = 240, 48, 60  # of the curve in a notebook: pixels, pixels, at most so many points per run


def watched() -> bool:
    """Whether output is interactive: a terminal or Jupyter, and no batch run (CI, pytest, papermill, nbconvert)."""
    if silent() or switched_on("CI"):
        return False
    return _kernel() is not None or sys.stderr.isatty()


def switched_on(variable: str) -> bool:
    """Whether a variable of the environment says yes; unset, empty, 0, false, no and off say no.

    >>> os.environ["FEDLAB_EXAMPLE"] = "0"
    >>> switched_on("FEDLAB_EXAMPLE"), switched_on("FEDLAB_NOT_SET")
    (False, False)
    """
    return os.environ.get(variable, "").strip().lower() not in ("", "0", "false", "no", "off")


def _kernel() -> Any:
    """The shell of the Jupyter kernel that this is, or None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") else None


def silent() -> bool:
    """Whether not even log lines are printed: under pytest, with `--quiet`, in a notebook that a program runs.

    Papermill, nbconvert and nbmake say in each request that no input can be asked for; JupyterLab and VS Code can ask.
    """
    if any(map(switched_on, ("PYTEST_CURRENT_TEST", "FEDLAB_BATCH"))):
        return True
    shell = _kernel()
    return shell is not None and shell.get_parent().get("content", {}).get("allow_stdin") is False


@contextlib.contextmanager
def every_minute(words: Callable[[], str]) -> Iterator[None]:
    """Print the text of `words` and the elapsed time to stderr once per minute, unless a bar is shown or output is off.

    >>> with every_minute(lambda: "counting"):
    ...     sum(range(10))
    45
    """
    if watched() or silent():
        yield
        return
    ended, began = threading.Event(), time.monotonic()

    def lines() -> None:
        while not ended.wait(SECONDS):
            say(f"{words()}, {(time.monotonic() - began) / 60:.0f} min", error=True)

    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _points(values: Sequence[float]) -> list[tuple[int, float]]:
    """The judgements and finite values of a run that are drawn."""
    step = math.ceil(len(values) / POINTS)
    return [(at, float(value)) for at, value in enumerate(values) if at % step == 0 and math.isfinite(value)]


def _svg(runs: Sequence[Sequence[float]]) -> str:
    """The curves of a cell's runs: the last one in colour, earlier ones in grey; nothing before the second point."""
    drawn = [_points(values) for values in runs]
    ats, values = [at for run in drawn for at, _ in run], [value for run in drawn for _, value in run]
    if not ats or max(ats) == 0:
        return ""
    low, wide, high = min(values), max(ats), (max(values) - min(values)) or 1

    def line(run: list[tuple[int, float]], colour: str) -> str:
        at = " ".join(f"{WIDTH * x / wide:.0f},{2 + (HEIGHT - 4) * (1 - (y - low) / high):.1f}" for x, y in run)
        return f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    lines = [*(line(run, "#aaaaaa") for run in drawn[:-1]), line(drawn[-1], "#0072B2")]
    return f'<br><svg width="{WIDTH}" height="{HEIGHT}">{"".join(lines)}</svg>'


class _Line:
    """The line under a cell: the bar of the present run, and a curve of each of the cell's runs."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self.html, self.runs = HTML, []
        self.handle = display(HTML(""), display_id=True)

    def show(self, text: str) -> None:
        self.handle.update(self.html(text))


_lines: dict[int, _Line] = {}  # by the number of the cell's execution


@contextlib.contextmanager
def _in_a_cell(description: str, total: int, unit: str) -> Iterator[Callable[..., None]]:
    """A bar in the line under the present cell of a notebook."""
    cell, done, began, last = _kernel().execution_count, 0, time.monotonic(), 0.0
    if cell not in _lines:
        _lines.clear()
        _lines[cell] = _Line()
    line, earlier = _lines[cell], len(_lines[cell].runs)

    def tick(steps: int, curve: Mapping[str, Sequence[float]] | None = None) -> None:
        nonlocal done, last
        done, now = done + steps, time.monotonic()
        if curve:
            line.runs[earlier:] = curve.values()
        if now - last > PAUSE:
            last, left = now, (now - began) / max(done, 1) * (total - done)
            bar = f'<progress value="{done}" max="{total}"></progress>'
            words = f"{description}: {done} of {total} {unit}, about {left:.0f} s left"
            seen = [f"; {name} {values[-1]:.3g}" for name, values in (curve or {}).items()]
            line.show(f"{bar} {html(words + ''.join(seen))}{_svg(line.runs)}")

    try:
        tick(0)
        yield tick
    finally:
        line.show("")


@contextlib.contextmanager
def progress_bar(
    description: str, total: int, shown: bool | None = None, unit: str = "rounds"
) -> Iterator[Callable[..., None]]:
    """Show a bar that disappears when done, or one line per minute; yield a function that advances it.

    In Jupyter all bars of a cell are one line, which is updated in place and empty at the end. A curve is drawn there:
    `tick(steps, {name: values so far})`. Elsewhere `tick(steps)` does the same.

    Args:
      shown: True: a bar; False: nothing; None: a bar if output is interactive, else one line per minute.
    """
    if shown is False:
        yield lambda *_: None
        return
    if not (shown or watched()):
        done: list[int] = []
        with every_minute(lambda: f"{description}: {sum(done)} of {total} {unit}"):
            yield lambda steps, *_: done.append(steps)
        return
    if _kernel():
        with _in_a_cell(description, total, unit) as tick:
            yield tick
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(plain(description, keep=""), total=total)
        yield lambda steps, *_: bar.advance(task, steps)
