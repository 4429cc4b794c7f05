"""A progress bar where somebody is looking, silence in batch runs."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator


def watched() -> bool:
    """Whether somebody is looking: a terminal or Jupyter, and no batch run (CI, pytest, our own runner)."""
    if any(os.environ.get(name) for name in ("CI", "PYTEST_CURRENT_TEST", "FEDLAB_BATCH")):
        return False
    return "ipykernel" in sys.modules or sys.stderr.isatty()


@contextlib.contextmanager
def progress_bar(description: str, total: int, shown: bool | None = None) -> Iterator[Callable[[int], None]]:
    """A bar that vanishes when it is done; yields a function that advances it. Silent unless `shown` or watched."""
    if not (watched() if shown is None else shown):
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)
