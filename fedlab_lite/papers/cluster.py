"""Notebooks one after the other, or on a Dask cluster: this machine's own (`--jobs`), or a given one (`--dask`)."""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fedlab_lite.papers import floors, notebooks
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.report import duration
from fedlab_lite.util import InputError
from fedlab_lite.util.progress import switched_on
from fedlab_lite.util.text import say

Job = tuple[Item, str, dict[str, Any]]  # item, preset, parameters
TIMEOUT = 4  # seconds to wait for a scheduler's answer
LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
OWN = {  # of Dask's configuration: a job is tried again once, and nothing is served over HTTP
    "distributed.scheduler.allowed-failures": 1,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # share of a GPU's memory that each worker takes at its start


def one_by_one(jobs: Sequence[Job]) -> Iterator[Job]:
    """The jobs; before each one a line that says which it is, and the time left at the pace of those before."""
    stored = switched_on("FEDLAB_STORED_ONLY")  # then drawing takes as long as at `quick`
    expected = [floors.minutes(item, "quick" if stored else preset) or 0.0 for item, preset, _ in jobs]
    began = time.monotonic()
    for index, job in enumerate(jobs):
        done, rest = sum(expected[:index]), sum(expected[index:])
        pace = (time.monotonic() - began) / 60 / done if done else 1.0
        say(f"notebook {index + 1} of {len(jobs)}: {job[0]}, about {duration(pace * rest)} left")
        yield job


def distribute(jobs: Sequence[Job], workers: int, address: str | None, **options: Any) -> Iterator[Callable[[], str]]:
    """Run `notebooks.produce` for each job; yields functions that return the results, in order of completion.

    Args:
      workers: number of worker processes, where no address is given.
      address: the scheduler's address; None: a cluster on this machine.
      options: of `runs.run_all`.
    """
    try:
        import dask
        from distributed import CancelledError, Client, KilledWorker, LocalCluster, as_completed
        from distributed.comm import CommClosedError
    except ImportError as error:
        raise InputError("--jobs and --dask need Dask: pip install 'fedlab-lite[dist]'") from error

    def finish(future) -> str:
        try:
            return future.result()
        except KilledWorker as error:
            why = "its Dask worker was killed twice, probably because memory ran out"
            raise notebooks.NotebookFailed(f"{items[future.key]}: {why}; reduce --jobs or the preset") from error
        except (CancelledError, CommClosedError) as error:
            lost = "Dask has lost its workers or its scheduler; the same command continues what was begun"
            raise notebooks.NotebookFailed(f"{items[future.key]}: {lost}") from error

    with contextlib.ExitStack() as stack:
        cluster = address
        if not address:
            stack.enter_context(dask.config.set(OWN))
            own = {"env": {"FEDLAB_BATCH": "1", FRACTION: os.environ.get(FRACTION, f"{0.9 / workers:.3f}")}}
            options_of_dask = {"silence_logs": logging.CRITICAL, **own, **LOOPBACK}  # results carry errors
            try:
                cluster = LocalCluster(n_workers=workers, threads_per_worker=1, **options_of_dask)
            except (OSError, RuntimeError, TimeoutError) as error:
                raise InputError(f"Dask cannot start {workers} workers here ({error}); use fewer --jobs") from error
            stack.enter_context(cluster)
        try:
            client = stack.enter_context(Client(cluster, timeout=TIMEOUT))
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(
                f"no Dask scheduler answers at {cluster} within {TIMEOUT} s ({type(error).__name__}); check "
                "that it runs (`dask scheduler`), and that this is its address, such as tcp://host:8786"
            ) from error
        items, running, waiting = {}, as_completed(), iter(jobs)

        def submit(count: int | None) -> None:
            for job in itertools.islice(waiting, count):
                future = client.submit(notebooks.produce, *job, **options, pure=False)
                items[future.key] = job[0]
                running.add(future)

        # Dask counts a worker's death against all jobs queued on it, so our own workers have no queue.
        submit(None if address else workers)
        for future in running:
            submit(1)
            yield partial(finish, future)
