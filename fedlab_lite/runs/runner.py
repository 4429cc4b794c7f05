"""Run training from settings, with names, checkpoints, and a store of finished runs.

A run is one trajectory: settings with one seed. Only what decides its numbers is part of its name. Finished runs are
read back. An interrupted run continues from its last checkpoint to the bit-identical result. A run gives the same bits
alone, beside other seeds, and in a sweep.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.engine import History, Problem, numbers_of
from fedlab_lite.runs import store
from fedlab_lite.runs.batch import Run, compile_batch, shape_of_state, train_batch
from fedlab_lite.runs.build import algorithm_of, build_problem, data_fingerprint
from fedlab_lite.runs.names import run_name, settings_name
from fedlab_lite.runs.settings import Settings
from fedlab_lite.util import CorruptFileError, InputError, MissingDataError, NotStoredError, files
from fedlab_lite.util.fields import Count, Range, checks_arguments
from fedlab_lite.util.jax_setup import PRECISIONS, start, together
from fedlab_lite.util.progress import switched_on


def run(settings: Settings, **options) -> History:
    """The history of a run: read from the store if finished, continued if interrupted, else computed.

    Args and errors: as `run_all`.

    Example:
      >>> history = run(Settings(num_clients=4, num_rounds=1, model_options={"width": 8}))
      >>> history.metrics["accuracy"].shape, history.rounds.tolist()
      ((1, 2), [0, 1])
    """
    return run_all({"": settings}, **options)[""]


@checks_arguments
def run_all(
    runs: Mapping[Any, Settings],
    *,
    progress: bool | None = None,
    force: bool = False,
    checkpoint_seconds: Annotated[float, Range(0)] = 15.0,
    keep_state: bool = False,
    need_state: bool = False,
    trajectories_at_once: Count = 1,
    clients_at_once: Count | None = None,
) -> dict[Any, History]:
    """The histories of several runs by name; runs that the store lacks are computed, one seed after the other.

    Runs that differ only in step sizes, penalties or epochs use one compiled program.

    Args:
      runs: settings by name, any keys; the result has the same keys, in the same order.
      progress: show a progress bar, in Jupyter with a curve of the headline; None: only in a terminal or Jupyter, not
        in a batch run.
      force: compute these runs again. A stored one is removed when there is a round to put in its place; unreadable
        files are kept as `<name>.corrupt`.
      checkpoint_seconds: time between checkpoints; 0: after every round.
      keep_state: also store the final states of runs that are trained now.
      need_state: also store those of runs that were trained before; they are trained again where the state is missing.
      trajectories_at_once: seeds and members of such a sweep that one program batches. More than 1 fills an accelerator
        that a single one does not fill. It needs as many times the memory, and the last bits differ; the history
        records the number.
      clients_at_once: how many clients an accelerator batches; None: chosen from their sizes and the device's memory,
        see `engine.in_groups`.

    Raises: `InputError`, `MissingDataError`, `CorruptFileError` (a damaged file in the store), `OutputError`;
      `NotStoredError` where FEDLAB_STORED_ONLY is set and something would have to be trained.

    Example:
      >>> base = {"num_clients": 4, "num_rounds": 1}
      >>> sweep = {lr: Settings(**base, algorithm_options={"lr": lr}) for lr in (0.01, 0.1)}
      >>> {lr: history.settings.algorithm_options for lr, history in run_all(sweep).items()}
      {0.01: (('lr', 0.01),), 0.1: (('lr', 0.1),)}
    """
    if not isinstance(runs, Mapping):
        raise InputError("run_all needs a dictionary of settings by name; for one run use `run(settings)`")
    if wrong := [value for value in runs.values() if not isinstance(value, Settings)]:
        raise InputError(f"{wrong[0]!r} is no Settings; write Settings(...), or Settings(**values) for a dictionary")
    parts = _parts(runs, force, need_state)
    histories = {name: history for history, name in parts.values()}
    programs = _programs(parts)
    if programs and switched_on("FEDLAB_STORED_ONLY"):
        count = sum(map(len, programs))
        raise NotStoredError(f"{count} of the runs are not stored, and this command trains nothing")
    if programs and jax.process_index() == 0:  # process 0 writes for all
        files.check_writable(files.runs_dir())
    options = {"progress": progress, "checkpoint_seconds": checkpoint_seconds, "keep_state": keep_state or need_state}
    options["force"] = force
    for waiting in programs:
        histories |= train_program(waiting, trajectories_at_once, clients_at_once, **options)
    return {
        name: History.stack([histories[parts[settings, seed][1]] for seed in settings.seeds], settings)
        for name, settings in runs.items()
    }


def missing(runs: Mapping[Any, Settings], *, force: bool = False, lacking: list[str] | None = None) -> list[list[Run]]:
    """The runs that the store lacks, by compiled program; with `force` all of them.

    Args:
      lacking: takes the messages of runs whose data this machine lacks or whose stored file is damaged, each once;
        these runs are left out. None: such a run is an error.

    Raises: `InputError`, `MissingDataError`, `CorruptFileError`, as `run_all`.

    Example:
      >>> base = {"num_clients": 4, "num_rounds": 1, "model_options": {"width": 9}}
      >>> sweep = {lr: Settings(**base, algorithm_options={"lr": lr}) for lr in (0.01, 0.1)}
      >>> [len(runs) for runs in missing(sweep | {"long": Settings(**base | {"num_rounds": 2}, seeds=(0, 1))})]
      [2, 2]
    """
    return _programs(_parts(runs, force, need_state=False, lacking=lacking))


def train_program(
    waiting: Sequence[Run], trajectories_at_once: int, clients_at_once: int | None, **options: Any
) -> dict[str, History]:
    """Train and store runs of one program, in batches; `options` are those of `train_batch`."""
    histories = {}
    for first in range(0, len(waiting), trajectories_at_once):
        batch = waiting[first : first + trajectories_at_once]
        with together(), _prepared(batch[0][1], clients_at_once) as problem:
            histories |= train_batch(batch, problem, **options)
    return histories


def compile_program(waiting: Sequence[Run], trajectories_at_once: int, clients_at_once: int | None) -> None:
    """Compile a program without training, as `train_program` would."""
    with _prepared(waiting[0][1], clients_at_once) as problem:
        compile_batch(waiting[:trajectories_at_once], problem)


@contextmanager
def _prepared(settings: Settings, clients_at_once: int | None) -> Iterator[Problem]:
    """The problem of some runs, while products have their precision."""
    with jax.default_matmul_precision(PRECISIONS[settings.precision]):
        yield replace(build_problem(settings), clients_at_once=clients_at_once)


Parts = dict[tuple[Settings, int], tuple[History | None, str]]


def _parts(runs: Mapping[Any, Settings], force: bool, need_state: bool, lacking: list[str] | None = None) -> Parts:
    """The stored history, or None, and the name of every seed's run; for `lacking` see `missing`."""
    start()
    parts: Parts = {}
    for settings, seed in [(each, seed) for each in runs.values() for seed in each.seeds]:
        try:
            parts[settings, seed] = _stored(settings, seed, force, need_state)
        except (MissingDataError, CorruptFileError) as error:
            if lacking is None:
                raise
            lacking += [str(error)] if str(error) not in lacking else []
    return parts


def _programs(parts: Parts) -> list[list[Run]]:
    """The runs without a history, each once, by program."""
    programs: dict[Any, dict[str, Run]] = {}
    for (settings, seed), (history, name) in parts.items():
        if history is None:
            of_seed = settings.of_seed(seed)
            programs.setdefault(_program(of_seed), {})[name] = (name, of_seed, seed)
    return [list(same.values()) for same in programs.values()]


def _stored(settings: Settings, seed: int, force: bool, need_state: bool) -> tuple[History | None, str]:
    """The stored history of one seed's run, if the store has all that is needed; and the run's name."""
    settings = settings.of_seed(seed)
    try:
        problem = build_problem(settings)
    except MissingDataError:  # computed on a machine with the data, shown on one without
        return _stored_elsewhere(settings, seed, force or need_state)
    name = run_name(settings, seed, data_fingerprint(problem))
    if force:
        return None, name
    history = store.load_history(name)
    if history is None or (need_state and not store.path(name, "state").exists()):
        return None, name
    if (left := store.path(name, "ckpt")).exists():  # killed before the checkpoint was removed
        store.remove(left)
    return history, name


def _stored_elsewhere(settings: Settings, seed: int, not_enough: bool) -> tuple[History, str]:
    pattern = f"{settings_name(settings, seed)}-{'?' * 16}.npz"
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


def final_state(settings: Settings, **options) -> tuple[Problem, dict]:
    """The problem and the state after the last round (leaves `[S, ...]`), computed if it is not in the store.

    Raises: as `build_problem` and `run_all`.

    Example:
      >>> settings = Settings(num_clients=4, num_rounds=1, model_options={"width": 8}, seeds=(0, 1))
      >>> problem, state = final_state(settings)
      >>> state["params"]["head"]["bias"].shape
      (2, 62)
    """
    problem = build_problem(settings)
    run(settings, need_state=True, **options)
    like = shape_of_state(problem, algorithm_of(settings))
    names = [run_name(settings, seed, data_fingerprint(problem)) for seed in settings.seeds]
    paths = [store.path(name, "state") for name in names]
    states = [store.unpack(file, store.load_state(file), like) for file in paths]
    return problem, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def measured(settings: Settings, what: str, measure: Callable[[Problem, dict], dict]) -> dict[str, np.ndarray]:
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
    each = zip(history.seeds, history.data_fingerprints(), strict=True)
    return [run_name(history.settings, seed, fingerprint) for seed, fingerprint in each]
