"""Progress reporting: a bar in a terminal or notebook, one line per minute in a log, nothing in batch runs."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fedlab_lite.util.text import html, plain, say

SECONDS = 60.0  # between two lines in a log


def watched() -> bool:
    """Whether output is interactive: a terminal or Jupyter, and no batch run (CI, pytest, our own runner)."""
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
    """Whether not even log lines are printed: under pytest, in our own runner's kernels, with `--quiet`."""
    return any(map(switched_on, ("PYTEST_CURRENT_TEST", "FEDLAB_BATCH")))


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


_line: dict[int, Any] = {}  # the number of a cell's execution, and the handle of the line under it


@contextlib.contextmanager
def _in_a_cell(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A bar in the line under the present cell of a notebook."""
    from IPython.display import HTML, display

    cell, done, began, last = _kernel().execution_count, 0, time.monotonic(), 0.0
    if cell not in _line:
        _line.clear()
        _line[cell] = display(HTML(""), display_id=True)

    def tick(steps: int) -> None:
        nonlocal done, last
        done, now = done + steps, time.monotonic()
        if now - last > 0.2:  # a browser needs no more
            last, left = now, (now - began) / max(done, 1) * (total - done)
            bar = f'<progress value="{done}" max="{total}"></progress>'
            words = f"{description}: {done} of {total} {unit}, about {left:.0f} s left"
            _line[cell].update(HTML(f"{bar} {html(words)}"))

    try:
        tick(0)
        yield tick
    finally:
        _line[cell].update(HTML(""))


@contextlib.contextmanager
def progress_bar(
    description: str, total: int, shown: bool | None = None, unit: str = "rounds"
) -> Iterator[Callable[[int], None]]:
    """Show a bar that disappears when done, or one line per minute; yield a function that advances it.

    In Jupyter all bars of a cell are one line, which is updated in place and empty at the end.

    Args:
      shown: True: a bar; False: nothing; None: a bar if output is interactive, else one line per minute.
    """
    if shown is False:
        yield lambda steps: None
        return
    if not (shown or watched()):
        done: list[int] = []
        with every_minute(lambda: f"{description}: {sum(done)} of {total} {unit}"):
            yield done.append
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
        yield lambda steps: bar.advance(task, steps)
