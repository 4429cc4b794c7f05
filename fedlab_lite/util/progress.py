"""Progress reporting: a bar in a terminal or notebook, one line per minute in a log, nothing in batch runs."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

SECONDS = 60.0  # between two lines in a log


def watched() -> bool:
    """Whether output is interactive: a terminal or Jupyter, and no batch run (CI, pytest, our own runner)."""
    if silent() or os.environ.get("CI"):
        return False
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()  # only inside a kernel
    return hasattr(shell, "kernel") or sys.stderr.isatty()


def silent() -> bool:
    """Whether not even log lines are printed: under pytest, in our own runner's kernels, with `--quiet`."""
    return any(os.environ.get(name) for name in ("PYTEST_CURRENT_TEST", "FEDLAB_BATCH"))


@contextlib.contextmanager
def every_minute(say: Callable[[], str]) -> Iterator[None]:
    """Print the text of `say` and the elapsed time to stderr once per minute, unless a bar is shown or output is off.

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
            print(f"{say()}, {(time.monotonic() - began) / 60:.0f} min", file=sys.stderr, flush=True)

    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def progress_bar(
    description: str, total: int, shown: bool | None = None, unit: str = "rounds"
) -> Iterator[Callable[[int], None]]:
    """Show a bar that disappears when done, or one line per minute; yield a function that advances it.

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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)
