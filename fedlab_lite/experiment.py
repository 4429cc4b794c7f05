"""run(settings) -> History: one jitted round after the other, seeds batched, checkpoints, and a store of finished runs.

A run is named by its settings, the content of its data and the code that decides its numbers. Finished runs are read
back; a run that was killed goes on from its last checkpoint to the bit-identical result.
"""

import ast
import contextlib
import hashlib
import importlib
import inspect
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

import fedlab_lite
from fedlab_lite import clients, data, deq, files, metrics, store
from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.clients import Problem, replicated
from fedlab_lite.errors import InputError, MissingDataError
from fedlab_lite.history import History
from fedlab_lite.metrics import evaluate, message_bytes
from fedlab_lite.nn import layers, model, winograd
from fedlab_lite.nn.model import MODELS, count_params, make_model
from fedlab_lite.settings import Settings

__all__ = ["History", "Problem", "Settings", "build_problem", "final_state", "run", "run_key"]


# --- what a run is called ---------------------------------------------------------------------------------------


def _normalised(source: str) -> str:
    """Source without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                node.body = body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _with_imports(module: ModuleType) -> set[ModuleType]:
    """An algorithm's module and the algorithms' modules that it builds on."""
    found, package = {module}, "fedlab_lite.algorithms."
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(package):
            found |= _with_imports(importlib.import_module(node.module))
    return found


@lru_cache(maxsize=128)
def numerics(algorithm: type, family: str) -> str:
    """Hash of the code that can change the numbers of a run with this algorithm class and model family (a module).

    Comments, docstrings and other algorithms do not count, so they invalidate no results.
    """
    folder = Path(deq.__file__).parent
    modules = {importlib.import_module(f"fedlab_lite.deq.{file.stem}") for file in folder.glob("[a-z]*.py")}
    modules |= {layers, winograd, model, clients, metrics, importlib.import_module(family)}
    modules |= _with_imports(inspect.getmodule(algorithm))
    sources = [inspect.getsource(module) for module in sorted(modules, key=lambda module: module.__name__)]
    return hashlib.sha256("\n".join(map(_normalised, [*sources, *_RUN_LOGIC])).encode()).hexdigest()


def _code_key(settings: Settings) -> str:
    family = MODELS[settings.model][0].__module__
    text = settings.canonical() + numerics(ALGORITHMS[settings.algorithm], family)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_key(settings: Settings, fingerprint: str) -> str:
    """The name of a run: settings and numerics, then the data's fingerprint."""
    return f"{_code_key(settings)}-{fingerprint[:16]}"


# --- what a run computes ----------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _data(data_dir: Path, dataset: str, **options):
    return data.federated(dataset, **options)


def build_problem(settings: Settings) -> Problem:
    """Data and model of the settings. Raises `InputError`, or `MissingDataError` for real data that is not here."""
    names = ("partition", "num_clients", "classes_per_client", "alpha", "train_size", "test_size")
    options = {name: getattr(settings, name) for name in names}
    federated = _data(files.data_dir(), settings.dataset, **options, seed=settings.data_seed)
    options = dict(settings.model_options)
    return Problem(federated, make_model(settings.model, federated.input_shape, federated.num_classes, **options))


def _over_seeds(fn: Callable, num_seeds: int) -> Callable:
    """`fn` over the leading seed axis of its arguments; a single seed is not batched, which is cheaper."""
    if num_seeds > 1:
        return jax.vmap(fn)

    def single(*trees):
        result = fn(*jax.tree.map(lambda leaf: leaf[0], trees))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result)

    return single


def _start(algorithm, problem, keys):
    """The state before the first round; not jitted, so that `Model.init` is compiled once for all algorithms."""
    state = _over_seeds(lambda key: algorithm.init(problem, key), len(keys))(keys)
    return jax.device_put(state, replicated())


@partial(jax.jit, static_argnames="cohort_size", donate_argnames="state")
def _round(algorithm, problem, state, index, sample_keys, round_keys, cohort_size: int):
    def one_seed(state, sample_key, round_key):
        key = jax.random.fold_in(sample_key, index)
        cohort = jax.random.choice(key, problem.num_clients, (cohort_size,), replace=False)
        return algorithm.round(problem, state, problem.dealt(cohort), jax.random.fold_in(round_key, index))

    state = _over_seeds(one_seed, len(sample_keys))(state, sample_keys, round_keys)
    return jax.lax.with_sharding_constraint(state, replicated())


@partial(jax.jit, static_argnames="num_seeds")
def _judged(algorithm, problem, state, num_seeds: int):
    """Models by judgement ('': the headline), the algorithm's own scalars, and whether the state is finite."""

    def one_seed(state):
        models = {"": algorithm.models(problem, state)} | algorithm.other_models(problem, state)
        floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        return models, algorithm.monitor(problem, state), jnp.all(jnp.stack([jnp.isfinite(x).all() for x in floats]))

    return _over_seeds(one_seed, num_seeds)(state)


@partial(jax.jit, static_argnames="num_seeds")
def _evaluate(problem, own, shared, num_seeds: int):
    """`metrics.evaluate` for each seed; one program for all algorithms that share the same parts of this model."""
    return _over_seeds(partial(evaluate, problem), num_seeds)(own, shared)


def _judge(algorithm, problem, state, num_seeds: int):
    """Scalars by name, every client's accuracy, and whether state and loss are finite; each with the seed axis."""
    models, monitored, finite = _judged(algorithm, problem, state, num_seeds)
    results = {name: _evaluate(problem, *parts, num_seeds) for name, parts in models.items()}
    headline = results.pop("")
    scalars = {name: values.mean(1) for name, values in headline.items()}
    for judgement, result in results.items():
        scalars |= {f"{name}_{judgement}": result[name].mean(1) for name in ("accuracy", "loss")}
    scalars = {name: jnp.float32(values) for name, values in (scalars | monitored).items()}
    return scalars, headline["accuracy"], finite & jnp.isfinite(headline["loss"]).all(1)


class _Curves:
    """What has been measured so far; goes into every checkpoint."""

    def __init__(self, saved: dict | None = None):
        saved = saved or {"rounds": np.zeros(0, np.int32), "metrics": {}, "client_accuracy": None, "finite": True}
        self.rounds, self.metrics = saved["rounds"], saved["metrics"]
        self.client_accuracy, self.finite = saved["client_accuracy"], saved["finite"]

    def add(self, index: int, judged) -> None:
        scalars, self.client_accuracy, finite = jax.tree.map(np.asarray, judged)
        self.rounds = np.append(self.rounds, np.int32(index))
        before = self.metrics or {name: np.zeros((len(finite), 0), np.float32) for name in scalars}
        self.metrics = {name: np.column_stack([before[name], value]) for name, value in scalars.items()}
        self.finite = self.finite & finite


def _train(settings: Settings, problem: Problem, key: str, advance: Callable, checkpoint_seconds: float):
    """From the last checkpoint, or from the start, to the last round. Returns state, curves and seconds."""
    algorithm = make_algorithm(settings.algorithm, **dict(settings.algorithm_options))
    cohort_size = settings.cohort_size or problem.num_clients
    if cohort_size > problem.num_clients:
        raise InputError(f"cohort_size {cohort_size} is more than the {problem.num_clients} clients of the data")
    keys = jnp.stack([jax.random.split(jax.random.key(seed), 3) for seed in settings.seeds])  # [S, 3]
    init_keys, sample_keys, round_keys = keys[:, 0], keys[:, 1], keys[:, 2]
    problem = jax.device_put(problem, replicated())
    began = written = time.monotonic()
    cost = 0.0

    file = store.path(key, "ckpt")
    saved = store.load_tree(file)
    if saved:
        like = jax.eval_shape(partial(_start, algorithm), problem, init_keys)
        state = jax.device_put(store.unpack(file, saved["state"], like), replicated())
        curves, first = _Curves(saved["curves"]), saved["next"]
        began -= saved["seconds"]
    else:
        state, curves, first = _start(algorithm, problem, init_keys), _Curves(), 0
        curves.add(0, _judge(algorithm, problem, state, len(settings.seeds)))
    advance(first)

    for index in range(first, settings.num_rounds):
        state = _round(algorithm, problem, state, index, sample_keys, round_keys, cohort_size)
        jax.block_until_ready(state)
        done = index + 1
        if done % settings.eval_every == 0 or done == settings.num_rounds:
            curves.add(done, _judge(algorithm, problem, state, len(settings.seeds)))
        advance(1)
        now = time.monotonic()
        pause = max(checkpoint_seconds, 10 * cost) if checkpoint_seconds else 0.0  # a large state is written less often
        if done < settings.num_rounds and now - written >= pause:
            tree = {"state": store.pack(state), "next": done, "seconds": now - began, "curves": vars(curves)}
            store.save_tree(file, tree)
            written = time.monotonic()
            cost = written - now
    return state, curves, time.monotonic() - began


_RUN_LOGIC = tuple(map(inspect.getsource, (_over_seeds, _start, _round, _judged, _evaluate, _judge, _train)))


def describe_machine() -> dict:
    """'device' in words, and 'versions' of what computes."""
    names = ("jax", "flax", "optax", "numpy")
    versions = {name: importlib.import_module(name).__version__ for name in names}
    versions |= {"python": platform.python_version(), "fedlab_lite": fedlab_lite.__version__}
    return {"device": f"{jax.device_count()} x {jax.devices()[0].device_kind}", "versions": versions}


def run(
    settings: Settings,
    *,
    progress: bool | None = None,
    force: bool = False,
    checkpoint_seconds: float = 15.0,
    keep_state: bool = False,
) -> History:
    """The history of a run: read from the store if it is finished, continued if it was interrupted, else computed.

    Args:
      progress: show a bar; None: where somebody is watching (a terminal or Jupyter, no batch run).
      force: forget what the store has of this run; files that cannot be read are kept as `<name>.corrupt`.
      checkpoint_seconds: time between checkpoints; 0: after every round.
      keep_state: store the final state too, for `final_state`.

    Raises: `InputError`, `MissingDataError`, `CorruptFileError` (a damaged file in the store), `OutputError`.

    Example:
      >>> history = run(Settings(num_clients=4, num_rounds=1, model_options={"width": 8}))
      >>> history.metrics["accuracy"].shape, history.rounds.tolist()
      ((1, 2), [0, 1])
    """
    try:
        problem = build_problem(settings)
    except MissingDataError:  # computed on a machine that has the data, shown on one that has not
        found = sorted(files.runs_dir().glob(f"{_code_key(settings)}-*.npz"))
        if len(found) != 1 or force or keep_state:
            raise
        return History.load(found[0])

    fingerprint = problem.data.fingerprint()
    key = run_key(settings, fingerprint)
    if force:
        store.set_aside(key)
    history = History.load(store.path(key, "npz"))
    if history is not None and (not keep_state or store.path(key, "state").exists()):
        store.path(key, "ckpt").unlink(missing_ok=True)  # killed between the last write and this
        return history

    with progress_bar(settings.describe(), settings.num_rounds, progress) as advance:
        state, curves, seconds = _train(settings, problem, key, advance, checkpoint_seconds)
    if keep_state:
        store.save_tree(store.path(key, "state"), {"state": store.pack(state)})
    params = jax.eval_shape(problem.model.init, jax.random.key(0))
    algorithm = make_algorithm(settings.algorithm, **dict(settings.algorithm_options))
    history = History(
        settings=settings,
        rounds=curves.rounds,
        metrics=curves.metrics,
        client_accuracy=curves.client_accuracy,
        diverged=tuple(not ok for ok in curves.finite.tolist()),
        message_bytes=message_bytes(algorithm.messages(problem)),
        num_params={part: count_params(tree) for part, tree in params.items()},
        seconds=round(seconds, 3),
        data_source=problem.data.source,
        data_fingerprint=fingerprint,
        **describe_machine(),
    )
    history.save(store.path(key, "npz"))
    store.path(key, "ckpt").unlink(missing_ok=True)
    store.sweep()
    return history


def final_state(settings: Settings, **options) -> tuple[Problem, object]:
    """The problem and the state after the last round (leaves `[S, ...]`), computed if the store has it not."""
    run(settings, keep_state=True, **options)
    problem = build_problem(settings)
    algorithm = make_algorithm(settings.algorithm, **dict(settings.algorithm_options))
    keys = jnp.stack([jax.random.key(seed) for seed in settings.seeds])
    like = jax.eval_shape(partial(_start, algorithm), problem, keys)
    file = store.path(run_key(settings, problem.data.fingerprint()), "state")
    return problem, store.unpack(file, store.load_tree(file)["state"], like)


# --- progress ---------------------------------------------------------------------------------------------------


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
