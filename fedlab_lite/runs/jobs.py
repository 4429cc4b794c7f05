"""Compute runs by several processes within a given time: what is finished is stored, and the rest can be continued.

It is for a machine that is lent for some minutes. Each process takes the next program that is waiting: runs that differ
in seeds and step sizes only. At first all programs are compiled, several at the same time.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax

from fedlab_lite.engine import setup
from fedlab_lite.runs import store
from fedlab_lite.runs.batch import OutOfTime, Run
from fedlab_lite.runs.runner import compile_program, train_program
from fedlab_lite.util import FedlabError, InputError

GRACE = 5.0  # seconds after the deadline, at which processes that are still in a round are ended
MEMORY = 0.92  # share of an accelerator's memory that all processes have together


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
    trajectories_at_once: int = 1,
    clients_at_once: int | None = None,
) -> Outcome:
    """Compute programs in their order, by `jobs` processes, for at most `minutes`.

    Args:
      programs: what is missing, see `runs.missing`.
      jobs: processes; on an accelerator they share its memory in equal parts.
      minutes: for everything; None: until all is done.
      trajectories_at_once, clients_at_once: as for `run_all`.

    Raises `InputError` where nothing is missing, or where the time is over before a program has made a round.
    """
    if not programs:
        raise InputError("nothing is missing: all these runs are stored; `--force` computes them again")
    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    problems: list[str] = []
    at_once = {"trajectories_at_once": trajectories_at_once, "clients_at_once": clients_at_once}
    if minutes is not None and len(programs) > 1:
        compilers = min(len(programs), max(jobs, (os.cpu_count() or 1) // 2))
        _share_out(partial(_compile, **at_once), programs, compilers, until, problems)
    _share_out(partial(_train, until=until, **at_once), programs, jobs, until, problems)
    names = [name for program in programs for name, *_ in program.runs]
    found = {kind: [name for name in names if store.find(name, kind)] for kind in ("npz", "ckpt")}
    outcome = Outcome(found["npz"], found["ckpt"], len(names) - len(found["npz"]), list(dict.fromkeys(problems)))
    if not (outcome.finished or outcome.begun or problems):
        raise InputError(
            f"{minutes:g} minutes were over before the first program had made a round; give more --minutes, at least "
            "those that its compilation takes"
        )
    return outcome


def _share_out(work: Callable, programs: Sequence[Program], jobs: int, until: float, problems: list[str]) -> None:
    """Let processes work on programs, each on the next one, until none is left or the time is over."""
    context = multiprocessing.get_context("spawn")
    taken, said = context.Value("i", 0), context.SimpleQueue()
    memory = f"{MEMORY / jobs:.3f}"
    workers = [context.Process(target=_worker, args=(work, programs, taken, said, until, memory)) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        if time.monotonic() > until + GRACE:
            for worker in workers:
                worker.kill()
        workers[0].join(0.1)
        while not said.empty():
            problems.append(said.get())
    if time.monotonic() <= until:
        problems += [f"a process ended with code {worker.exitcode}" for worker in workers if worker.exitcode]


def _worker(work: Callable, programs: Sequence[Program], taken: Any, said: Any, until: float, memory: str) -> None:
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = memory  # read when the accelerator is first used
    setup()
    while time.monotonic() < until:
        with taken.get_lock():
            index, taken.value = taken.value, taken.value + 1
        if index >= len(programs):
            return
        settings = programs[index].runs[0][1]
        try:
            work(programs[index])
        except OutOfTime:
            return
        except FedlabError as error:
            said.put(f"{settings.describe()}: {error}")
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            said.put(f"{settings.describe()} needs more than this process's share of the memory; use fewer --jobs")


def _compile(program: Program, **at_once: Any) -> None:
    compile_program(program.runs, **at_once)


def _train(program: Program, *, until: float, **at_once: Any) -> None:
    options = {"progress": False, "checkpoint_seconds": 60.0, "keep_state": program.keep_state, "until": until}
    train_program(program.runs, **at_once, **options)
