"""How far it is: a bar where somebody is looking, a line a minute in a log, silence in batch runs."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

SECONDS = 60.0  # between two lines of a log


def watched() -> bool:
    """Whether somebody is looking: a terminal or Jupyter, and no batch run (CI, pytest, our own runner)."""
    if silent() or os.environ.get("CI"):
        return False
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()  # in a kernel, not beside one
    return hasattr(shell, "kernel") or sys.stderr.isatty()


def silent() -> bool:
    """Whether not even a log should hear of it: under pytest, in our own runner's kernels, with `--quiet`."""
    return any(os.environ.get(name) for name in ("PYTEST_CURRENT_TEST", "FEDLAB_BATCH"))


@contextlib.contextmanager
def every_minute(say: Callable[[], str]) -> Iterator[None]:
    """What `say` says and the time since, once a minute on stderr; nothing where there is a bar, or silence.

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
    """A bar that vanishes when it is done, or a line a minute; yields a function that advances it.

    Args:
      shown: True: a bar; False: nothing at all; None: what fits who is looking.
    """
    if shown is False:
        yield lambda steps: None
        return
    if not (shown or watched()):
        done = 0

        def advance(steps: int) -> None:
            nonlocal done
            done += steps

        with every_minute(lambda: f"{description}: {done} of {total} {unit}"):
            yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)
