"""Compute runs by several processes within a given time: what is finished is stored, and the rest can be continued.

It is for a machine that is lent for some minutes. Each process takes the next program that is waiting: runs that differ
in seeds and step sizes only. Where there are more cores than processes, a part of the time goes to compilation first.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import jax

from fedlab_lite.engine import setup
from fedlab_lite.runs import memory, store
from fedlab_lite.runs.batch import OutOfTime, Run
from fedlab_lite.runs.runner import compile_program, train_program
from fedlab_lite.util import FedlabError, InputError, files

GRACE = 5.0  # seconds after the deadline, at which processes that are still in a round are ended
MEMORY = 0.92  # share of an accelerator's memory that all processes have together
COMPILING = 1 / 3  # share of the time after which training begins, whatever is compiled by then


class Program(NamedTuple):
    """Runs of one compiled program, and whether their final states are stored as well."""

    runs: Sequence[Run]
    keep_state: bool = False


@dataclass
class Outcome:
    """What came of a computation: names of finished runs and of those that can be continued, and what went wrong."""

    finished: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    left: int = 0  # runs that are not finished
    problems: list[str] = field(default_factory=list)


def compute(
    programs: Sequence[Program],
    *,
    jobs: int = 1,
    minutes: float | None = None,
    began: float | None = None,
    force: bool = False,
    trajectories_at_once: int = 1,
    clients_at_once: int | None = None,
) -> Outcome:
    """Compute programs in their order, by `jobs` processes, for at most `minutes`.

    Args:
      programs: what is missing, see `runs.missing`.
      jobs: processes; on an accelerator they share its memory in equal parts.
      minutes: for everything; None: until all is done.
      began: the time (`time.monotonic()`) from which the minutes count; None: now.
      force, trajectories_at_once, clients_at_once: as for `run_all`.

    Raises: `InputError` where nothing is missing, or where the time is over before a program has made a round;
      `OutputError` where the store cannot be written.
    """
    if not programs:
        raise InputError("nothing is missing: all these runs are stored; `--force` computes them again")
    files.check_writable(files.runs_dir())
    names = [name for program in programs for name, *_ in program.runs]
    before = [_written(name) for name in names]
    now = time.monotonic()
    until = float("inf") if minutes is None else (now if began is None else began) + 60 * minutes
    at_once = {"trajectories_at_once": trajectories_at_once, "clients_at_once": clients_at_once}
    compilers = min(len(programs), (os.cpu_count() or 1) // 2)
    if minutes is not None and compilers > jobs:
        pause = now + COMPILING * (until - now)
        _share_out(partial(_compile, **at_once), programs, compilers, pause, _sharing(jobs, preallocate=False))
    train = partial(_train, until=until, force=force, **at_once)
    problems = _share_out(train, programs, jobs, until, _sharing(jobs))
    finished = [name for name, old in zip(names, before, strict=True) if _written(name) != old]
    begun = [name for name in names if name not in finished and store.path(name, "ckpt").exists()]
    outcome = Outcome(finished, begun, len(names) - len(finished), problems)
    if not (outcome.finished or outcome.begun or problems):
        raise InputError(
            f"{minutes:g} minutes were over before the first program had made a round; give more --minutes, at least "
            "those that its compilation takes"
        )
    return outcome


def _written(name: str) -> int | None:
    """When the store's file of a finished run was written; None: there is none."""
    file = store.path(name, "npz")
    return file.stat().st_mtime_ns if file.exists() else None


def _sharing(jobs: int, preallocate: bool = True) -> dict[str, str]:
    """The environment of a process that has one of `jobs` equal shares of an accelerator's memory.

    Clients are batched by the share. So a compiler has that of training, without taking it, and gets the same program.
    """
    share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY / jobs:.3f}"}
    return share if preallocate else share | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def _share_out(
    work: Callable, programs: Sequence[Program], jobs: int, until: float, environment: dict[str, str]
) -> list[str]:
    """Let processes work on programs, each on the next one, until none is left or the time is over.

    Returns: what went wrong, each problem once. No process outlives this call, or this process.
    """
    context = multiprocessing.get_context("spawn")
    taken, said = context.Value("i", 0), context.SimpleQueue()
    arguments = (partial(_worker, work, programs, jobs, taken, said, until), environment)
    workers = [context.Process(target=_process, args=arguments) for _ in range(jobs)]
    problems: list[str] = []
    running: list = []
    try:
        for worker in workers:
            worker.start()
            running.append(worker)
        while running and time.monotonic() <= until + GRACE:
            ended = wait([worker.sentinel for worker in running], 0.1)
            running = [worker for worker in running if worker.sentinel not in ended]
            while not said.empty():
                problems.append(said.get())
    finally:
        for worker in running:
            worker.kill()
    for worker in workers:
        worker.join()
        if worker.exitcode and worker not in running:
            problems.append(f"a process ended with code {worker.exitcode}")
    return list(dict.fromkeys(problems))


def _process(work: Callable[[], None], environment: dict[str, str]) -> None:
    """Work in a process of its own, which ends at once where its parent has ended. The parent answers Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.environ |= environment  # read when the accelerator is first used
    setup()
    work()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _worker(work: Callable, programs: Sequence[Program], jobs: int, taken: Any, said: Any, until: float) -> None:
    """Work on the next program until none is left or the time is over; put what went wrong into the queue `said`."""
    while time.monotonic() < until:
        with taken.get_lock():
            index, taken.value = taken.value, taken.value + 1
        if index >= len(programs):
            return
        about = programs[index].runs[0][1].describe()
        try:
            work(programs[index])
        except OutOfTime:
            return
        except (memory.DoesNotFit, jax.errors.JaxRuntimeError) as error:
            why = str(error)
            if not isinstance(error, memory.DoesNotFit):
                if "RESOURCE_EXHAUSTED" not in why:
                    raise
                why = f"{about} takes more memory than this process can have; {memory.ADVICE}"
            said.put(f"{why}, or fewer --jobs" if jobs > 1 else why)
        except FedlabError as error:
            said.put(f"{about}: {error}")


def _compile(program: Program, **at_once: Any) -> None:
    compile_program(program.runs, **at_once)


def _train(program: Program, *, until: float, force: bool, **at_once: Any) -> None:
    options = {"progress": False, "checkpoint_seconds": 60.0, "keep_state": program.keep_state, "until": until}
    train_program(program.runs, **at_once, **options, force=force)
