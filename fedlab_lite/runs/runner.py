"""Run training from settings, with names, checkpoints, and a store of finished runs.

A run is one trajectory: settings with one seed. Only what decides its numbers is part of its name. Finished runs are
read back. An interrupted run continues from its last checkpoint to the bit-identical result. A run gives the same bits
alone, beside other seeds, and in a sweep.
"""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.engine import (
    Algorithm,
    History,
    Plan,
    Problem,
    Progress,
    message_count,
    numbers_of,
    put_on_devices,
    training,
)
from fedlab_lite.nn import MODELS
from fedlab_lite.runs import store
from fedlab_lite.runs.build import algorithm_of, build_problem, data_fingerprint
from fedlab_lite.runs.settings import Settings
from fedlab_lite.util import BudgetWarning, InputError, MissingDataError, NotStoredError, files, progress_bar

Run = tuple[str, Settings, int]  # name, settings, seed


# --- what a run is called ---------------------------------------------------------------------------------------


def versions(settings: Settings) -> dict[str, int]:
    """The numerics versions that a run's numbers depend on; a higher version renames the runs that depend on it.

    `tests/test_numerics.py` compares the source behind each version with a recorded hash.
    """
    family = getattr(MODELS[settings.model][0], "version", 1)
    return {"engine": training.ENGINE, "algorithm": ALGORITHMS[settings.algorithm].version, "family": family}


def _settings_name(settings: Settings, seed: int) -> str:
    text = json.dumps([settings.canonical(), versions(settings), seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_name(settings: Settings, seed: int, fingerprint: str) -> str:
    """The name of one seed's run: a hash of non-default settings, numerics versions and seed; then the data's hash."""
    return f"{_settings_name(settings, seed)}-{fingerprint[:16]}"


# --- running ----------------------------------------------------------------------------------------------------


def run(settings: Settings, **options) -> History:
    """The history of a run: read from the store if finished, continued if interrupted, else computed.

    Args and errors: as `run_all`.

    Example:
      >>> history = run(Settings(num_clients=4, num_rounds=1, model_options={"width": 8}))
      >>> history.metrics["accuracy"].shape, history.rounds.tolist()
      ((1, 2), [0, 1])
    """
    return run_all({"": settings}, **options)[""]


def run_all(
    runs: Mapping[Any, Settings],
    *,
    progress: bool | None = None,
    force: bool = False,
    checkpoint_seconds: float = 15.0,
    keep_state: bool = False,
    need_state: bool = False,
    trajectories_at_once: int = 1,
    clients_at_once: int | None = None,
) -> dict[Any, History]:
    """The histories of several runs by name; runs that the store lacks are computed, one seed after the other.

    Runs that differ only in step sizes, penalties or epochs use one compiled program.

    Args:
      runs: settings by name, any keys; the result has the same keys, in the same order.
      progress: show a progress bar; None: only in a terminal or Jupyter, not in a batch run.
      force: remove these runs from the store and compute them again; unreadable files are kept as `<name>.corrupt`.
      checkpoint_seconds: time between checkpoints; 0: after every round.
      keep_state: also store the final states of runs that are trained now.
      need_state: also store those of runs that were trained before; they are trained again where the state is missing.
      trajectories_at_once: seeds and members of such a sweep that one program batches. More than 1 fills an accelerator
        that a single one does not fill. It needs as many times the memory, and the last bits differ; the history
        records the number.
      clients_at_once: how many clients an accelerator batches, see `engine.for_clients`.

    A run with a `privacy_budget` stops where the next round would exceed it. Its history has only the rounds before,
    and gives the reason in `about["stopped"]`. A `BudgetWarning` is issued.

    Raises: `InputError`, `MissingDataError`, `CorruptFileError` (a damaged file in the store), `OutputError`;
      `NotStoredError` where FEDLAB_STORED_ONLY is set and something would have to be trained.

    Example:
      >>> base = {"num_clients": 4, "num_rounds": 1}
      >>> sweep = {lr: Settings(**base, algorithm_options={"lr": lr}) for lr in (0.01, 0.1)}
      >>> {lr: history.settings.algorithm_options for lr, history in run_all(sweep).items()}
      {0.01: (('lr', 0.01),), 0.1: (('lr', 0.1),)}
    """
    if trajectories_at_once < 1:
        raise InputError(f"trajectories_at_once is {trajectories_at_once}; at least one has to be trained at a time")
    if not isinstance(runs, Mapping):
        raise InputError("run_all takes a dictionary of settings by name; for one run there is `run(settings)`")
    parts = {
        (settings, seed): _stored(settings, seed, force, need_state)
        for settings in runs.values()
        for seed in settings.seeds
    }
    histories = {name: history for history, name in parts.values()}
    programs: dict[Any, dict[str, Run]] = {}
    for (settings, seed), (history, name) in parts.items():
        if history is None:
            programs.setdefault(_program(settings), {})[name] = (name, settings, seed)
    if programs and os.environ.get("FEDLAB_STORED_ONLY"):
        count = sum(map(len, programs.values()))
        raise NotStoredError(f"{count} of the runs are not stored, and only stored ones may be shown")
    if programs and jax.process_index() == 0:  # process 0 writes for all
        files.check_writable(files.runs_dir())
    for same in programs.values():
        waiting = list(same.values())
        for first in range(0, len(waiting), trajectories_at_once):
            batch = waiting[first : first + trajectories_at_once]
            histories |= _compute(batch, progress, checkpoint_seconds, keep_state or need_state, clients_at_once)
    return {
        name: History.stack([histories[parts[settings, seed][1]] for seed in settings.seeds], settings)
        for name, settings in runs.items()
    }


def _stored(settings: Settings, seed: int, force: bool, need_state: bool) -> tuple[History | None, str]:
    """The stored history of one seed's run, if the store has all that is needed; and the run's name."""
    try:
        problem = build_problem(settings)
    except MissingDataError:  # computed on a machine with the data, shown on one without
        return _stored_elsewhere(settings, seed, force or need_state)
    name = run_name(settings, seed, data_fingerprint(problem))
    if force:
        store.set_aside(name)
        return None, name
    history = store.load_history(name)
    if history is None or (need_state and not store.path(name, "state").exists()):
        return None, name
    if (left := store.path(name, "ckpt")).exists():  # killed before the checkpoint was removed
        store.remove(left)
    return history, name


def _stored_elsewhere(settings: Settings, seed: int, not_enough: bool) -> tuple[History, str]:
    pattern = f"{_settings_name(settings, seed)}-{'?' * 16}.npz"
    names = {file.stem for folder in store.folders() for file in folder.glob(pattern)}
    if len(names) != 1 or not_enough:
        build_problem(settings)  # raises the error that names the missing data
    (name,) = names
    return store.load_history(name), name


def _program(settings: Settings) -> tuple:
    """A key that is equal for runs of one problem and one compiled program.

    Such runs differ in seeds and an algorithm's numbers only.
    """
    numbers = numbers_of(ALGORITHMS[settings.algorithm])
    options = dict(settings.algorithm_options)
    rest = tuple((name, value) for name, value in options.items() if name not in numbers)
    given = tuple(name for name, value in options.items() if name in numbers and value is not None)
    return replace(settings, algorithm_options=rest, seeds=(0,)), given


def _compute(
    batch: list[Run], show: bool | None, checkpoint_seconds: float, keep_state: bool, clients_at_once: int | None
) -> dict[str, History]:
    """Train the runs of a batch and store each one; returns histories by name."""
    saved = {name: store.load_tree(store.path(name, "ckpt")) for name, *_ in batch}

    def standing(run: Run) -> int:
        return saved[run[0]]["progress"]["next"] if saved[run[0]] else -1

    settings = batch[0][1]
    problem = replace(build_problem(settings), clients_at_once=clients_at_once)
    plan = Plan(_affordable(settings, problem), settings.cohort_size, settings.eval_every)
    plan.check(problem, algorithm_of(settings))
    fingerprint = data_fingerprint(problem)
    for name, *_ in batch:
        store.agree(name)
    problem = training.place_problem(problem)
    histories = {}
    words = settings.describe() + (f" · {len(batch)} runs" if len(batch) > 1 else "")
    with progress_bar(words, plan.num_rounds * len(batch), show) as tick:
        # a kill between two writes leaves a batch at different rounds: each part continues from its own round
        for _, together in groupby(sorted(batch, key=standing), key=standing):
            part = list(together)
            checkpoints = [saved[name] for name, *_ in part]
            trajectories = [(algorithm_of(settings), seed) for _, settings, seed in part]
            states, found = None, None
            if all(checkpoints):
                found = [Progress(**checkpoint["progress"]) for checkpoint in checkpoints]
                paths = [store.path(name, "ckpt") for name, *_ in part]
                states = _restored(problem, trajectories, paths, checkpoints)
                tick(found[0].next * len(part))
            write = _Checkpoints([name for name, *_ in part], checkpoint_seconds, lambda part=part: tick(len(part)))
            states, found = training.advance(
                problem, trajectories, plan, states=states, progress=found, after_round=write
            )
            tick(min(1, plan.num_rounds) * len(part))
            for index, ((name, *_), trajectory, each) in enumerate(zip(part, trajectories, found, strict=True)):
                if keep_state:
                    state = training.part(states, index, len(part))
                    store.save_tree(store.path(name, "state"), {"state": store.pack(state)})
                history = training.history_of(problem, trajectory, plan, each, fingerprint, len(part))
                about = {what: getattr(settings, what) for what in ("dataset", "model", "algorithm")}
                if plan.num_rounds < settings.num_rounds:
                    about["stopped"] = _stopped(settings, plan.num_rounds)
                history = replace(history, about=about)
                store.save_history(name, history)
                store.remove(store.path(name, "ckpt"))
                histories[name] = history
    store.sweep()
    return histories


def _affordable(settings: Settings, problem: Problem) -> int:
    """The requested number of rounds, or, with a warning, as many as the privacy budget allows."""
    if not settings.privacy_budget:
        return settings.num_rounds
    messages = message_count(problem, algorithm_of(settings))["up"]
    if not messages:  # nothing is sent, so no budget is spent
        return settings.num_rounds
    rounds = settings.privacy(messages).affordable(settings.num_rounds)
    if rounds < settings.num_rounds:
        warnings.warn(_stopped(settings, rounds), BudgetWarning, stacklevel=2)
    return rounds


def _stopped(settings: Settings, rounds: int) -> str:
    epsilon, delta = settings.privacy_budget
    return f"{rounds} of {settings.num_rounds} rounds, which use up the privacy budget ({epsilon:g}, {delta:g})"


class _Checkpoints:
    """Writes the states of a batch at intervals of time, each under its own run's name."""

    def __init__(self, names: list[str], seconds: float, tick: Callable[[], None]):
        self.names, self.seconds, self.tick = names, seconds, tick
        self.written, self.cost = time.monotonic(), 0.0

    def __call__(self, states: dict, progress: Sequence[Progress]) -> None:
        self.tick()
        now = time.monotonic()
        pause = max(self.seconds, 10 * self.cost) if self.seconds else 0.0  # a large state is written less often
        if store.first_says(now - self.written < pause):
            return
        for index, (name, each) in enumerate(zip(self.names, progress, strict=True)):
            state = training.part(states, index, len(self.names))
            store.save_tree(store.path(name, "ckpt"), {"state": store.pack(state), "progress": vars(each)})
        self.written = time.monotonic()
        self.cost = self.written - now


def _shape_of_state(problem: Problem, trajectory: tuple[Algorithm, int]) -> dict:
    return jax.eval_shape(trajectory[0].init, problem, jax.random.key(0))


def _restored(problem: Problem, trajectories: list, paths: list[Path], checkpoints: list[dict]) -> dict:
    """The states of checkpoints, placed on the devices."""
    like = _shape_of_state(problem, trajectories[0])
    states = [store.unpack(file, saved["state"], like) for file, saved in zip(paths, checkpoints, strict=True)]
    states = states[0] if len(states) == 1 else jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    where = training.places(trajectories[0][0], problem, states, len(trajectories))
    return jax.tree.map(put_on_devices, states, where)


def final_state(settings: Settings, **options) -> tuple[Problem, dict]:
    """The problem and the state after the last round (leaves `[S, ...]`), computed if it is not in the store.

    Example:
      >>> settings = Settings(num_clients=4, num_rounds=1, model_options={"width": 8}, seeds=(0, 1))
      >>> problem, state = final_state(settings)
      >>> state["params"]["head"]["bias"].shape
      (2, 62)
    """
    run(settings, need_state=True, **options)
    problem = build_problem(settings)
    like = _shape_of_state(problem, (algorithm_of(settings), 0))
    names = [run_name(settings, seed, data_fingerprint(problem)) for seed in settings.seeds]
    paths = [store.path(name, "state") for name in names]
    states = [store.unpack(file, store.load_tree(file)["state"], like) for file in paths]
    return problem, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def measured(
    settings: Settings, what: str, measure: Callable[[Problem, dict], dict[str, Any]]
) -> dict[str, np.ndarray]:
    """The numbers that a figure needs from the final states, kept in the store after those states are removed.

    Args:
      what: a word for these numbers, part of their file's name; another measure needs another word.
      measure: `measure(problem, state)` of one seed's final state gives arrays by name.

    Returns: the arrays of all seeds, stacked, `[S, ...]`.

    Example:
      >>> settings = Settings(num_clients=4, num_rounds=1, model_options={"width": 8})
      >>> bias = lambda problem, state: {"bias": state["params"]["head"]["bias"]}
      >>> measured(settings, "bias", bias)["bias"].shape
      (1, 62)
    """
    parts = []
    for seed in settings.seeds:
        alone = replace(settings, seeds=(seed,))
        name = _stored(alone, seed, False, False)[1]
        file = store.find(name, f"{what}.npz")
        if file is None:
            problem, state = final_state(alone)
            numbers = measure(problem, jax.tree.map(lambda leaf: leaf[0], state))
            file = store.save_arrays(store.path(name, f"{what}.npz"), jax.tree.map(np.asarray, numbers), {})
        parts.append(store.load_arrays(file)[0])
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def run_names(history: History) -> list[str]:
    """The names of the runs behind a history, for `runs.store.publish`; empty for a history that `train` made."""
    if history.settings is None:
        return []
    return [run_name(history.settings, seed, history.data_fingerprint) for seed in history.seeds]
