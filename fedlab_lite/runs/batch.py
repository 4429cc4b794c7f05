"""Train the runs of one batch, with checkpoints: a killed batch goes on from them to the bit-identical result."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import jax
import numpy as np

from fedlab_lite.engine import Algorithm, History, Plan, Problem, Progress, in_groups, put_on_devices, training
from fedlab_lite.runs import memory, store
from fedlab_lite.runs.build import algorithm_of, data_fingerprint
from fedlab_lite.runs.settings import Settings
from fedlab_lite.util import InputError, files, progress_bar
from fedlab_lite.util.jax_setup import precision_here

Run = tuple[str, Settings, int]  # name, settings, seed
SMALL = 64 << 20  # bytes of a state that is written in a moment


class OutOfTime(Exception):
    """The next round would end after the time that training has; a small state is in a checkpoint."""


def train_batch(
    batch: Sequence[Run],
    problem: Problem,
    *,
    progress: bool | None,
    checkpoint_seconds: float,
    keep_state: bool,
    force: bool = False,
    until: float = math.inf,
) -> dict[str, History]:
    """Train the runs of a batch and store each one; returns histories by name.

    Args:
      batch: runs that differ in seeds and an algorithm's numbers only.
      progress, checkpoint_seconds, keep_state, force: as for `runs.run_all`.
      until: the time (`time.monotonic()`) by which training has to end.

    Raises `OutOfTime` where it has not ended by then.
    """
    settings = batch[0][1]
    about = {what: getattr(settings, what) for what in ("dataset", "model", "algorithm")}
    fingerprint = data_fingerprint(problem)
    store.agree(" and ".join(name for name, *_ in batch))
    problem, plan = _planned(problem, settings, len(batch))
    saved = {run: None if force else _checkpoint(run[0]) for run in batch}

    def standing(run: Run) -> int:
        checkpoint = saved[run]
        return checkpoint[1].next if checkpoint else -1

    histories = {}
    words = settings.describe() + (f" · {len(batch)} runs" if len(batch) > 1 else "")
    with progress_bar(words, plan.num_rounds * len(batch), progress) as tick:
        # a kill between two writes leaves a batch at different rounds: each part continues from its own round
        for rounds, together in groupby(sorted(batch, key=standing), key=standing):
            part = list(together)
            names, number = [name for name, *_ in part], len(part)
            trajectories = [(algorithm_of(settings), seed) for _, settings, seed in part]
            states, found = None, None
            if rounds >= 0:
                found = [saved[run][1] for run in part]
                states = _restored(problem, trajectories, names, [saved[run][0] for run in part])
                tick(rounds * number)
            write = _Checkpoints(names, checkpoint_seconds, partial(tick, number), until, problem.task.headline, force)
            states, found = training.advance(
                problem, trajectories, plan, states=states, progress=found, after_round=write
            )
            tick(min(1, plan.num_rounds) * number)
            write.set_aside()
            for index, (name, trajectory, each) in enumerate(zip(names, trajectories, found, strict=True)):
                if keep_state:
                    state = store.pack(training.part(states, index, number))
                    store.save_tree(store.path(name, "state"), {"state": state})
                history = training.history_of(problem, trajectory, plan, each, fingerprint)
                histories[name] = replace(history, about=about)
                store.save_history(name, histories[name])
                store.remove(store.path(name, "ckpt"))
    files.sweep(files.runs_dir())
    return histories


class _Checkpoints:
    """Writes the states of a batch at intervals of time, each under its own run's name."""

    def __init__(
        self, names: list[str], seconds: float, tick: Callable[[dict], None], until: float, headline: str, force: bool
    ):
        self.names, self.seconds, self.tick, self.until, self.headline = names, seconds, tick, until, headline
        self.stored = names if force else []  # runs that the store may have, and that are computed again
        self.written, self.cost, self.last = time.monotonic(), 0.0, time.monotonic()
        self.rounds, self.longest = 0, 0.0  # of the rounds so far but the first, which has compilation in it

    def set_aside(self) -> None:
        """Remove the runs that are computed again from the store, now that there is something to put in their place."""
        for name in self.stored if jax.process_index() == 0 else ():  # which writes for all
            store.set_aside(name)
        self.stored = []

    def __call__(self, states: dict, progress: Sequence[Progress]) -> None:
        self.tick({self.headline: progress[0].metrics[self.headline]})
        now = time.monotonic()
        took, self.last = now - self.last, now
        self.rounds += 1
        self.longest = max(self.longest, took) if self.rounds > 1 else 0.0
        over, unsure = now + self.longest > self.until, now + max(took, self.longest) > self.until
        pause = max(self.seconds, 10 * self.cost) if self.seconds else 0.0  # a large state is written less often
        small = sum(leaf.nbytes for leaf in jax.tree.leaves(states)) < SMALL
        if over and not small:
            raise OutOfTime
        if not (unsure and small) and store.first_says(now - self.written < pause):
            return
        self.set_aside()
        for index, (name, each) in enumerate(zip(self.names, progress, strict=True)):
            state = training.part(states, index, len(self.names))
            content = {"state": store.pack(state), "progress": vars(each), "made": _made()}
            store.save_tree(store.path(name, "ckpt"), content)
        if over:
            raise OutOfTime
        self.written = self.last = time.monotonic()
        self.cost = self.written - now


def _made() -> dict[str, str]:
    """What a run's last bits depend on, beside its settings."""
    return {"device": jax.devices()[0].device_kind, "precision": precision_here()}


def _checkpoint(name: str) -> tuple[dict, Progress, dict] | None:
    """A run's checkpoint, if it has one; raises `InputError` for one of another kind of device, or precision."""
    file, made = store.path(name, "ckpt"), _made()
    found = store.load_checkpoint(file)
    if found is None:
        return None
    unsaid = made if made["device"] == "cpu" else dict.fromkeys(made, "unknown")  # a file that does not say it
    for what, there in (unsaid | found[2]).items():
        if there != made[what]:
            raise InputError(
                f"{file} was written with {what} {there}, and this machine has {made[what]}. A run is computed with "
                "one of them: continue it there, move the file away, or compute the run anew with `--force`"
            )
    return found


def compile_batch(batch: Sequence[Run], problem: Problem) -> None:
    """Compile the programs of a batch, so that another process finds them in JAX's cache; no round is computed."""
    problem, plan = _planned(problem, batch[0][1], len(batch))
    training.compile_round(problem, [(algorithm_of(settings), seed) for _, settings, seed in batch], plan)


def _planned(problem: Problem, settings: Settings, trajectories: int) -> tuple[Problem, Plan]:
    """The problem on the devices, its clients in groups, and the plan of its rounds."""
    plan, algorithm = Plan(settings.num_rounds, settings.cohort_size, settings.eval_every), algorithm_of(settings)
    plan.check(problem, algorithm)
    memory.check(settings.describe(), problem, algorithm, trajectories)
    return training.place_problem(in_groups(problem, algorithm, plan.clients_per_round(problem))), plan


def shape_of_state(problem: Problem, algorithm: Algorithm) -> dict:
    """The state of an algorithm as shapes and types."""
    return jax.eval_shape(algorithm.init, problem, jax.random.key(0))


def _restored(problem: Problem, trajectories: list, names: list[str], packed: list[dict]) -> dict:
    """The states of checkpoints, placed on the devices."""
    algorithm, like = trajectories[0][0], shape_of_state(problem, trajectories[0][0])
    paths = [store.path(name, "ckpt") for name in names]
    states = [store.unpack(file, leaves, like) for file, leaves in zip(paths, packed, strict=True)]
    states = states[0] if len(states) == 1 else jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    return jax.tree.map(put_on_devices, states, training.places(algorithm, problem, states, len(trajectories)))
