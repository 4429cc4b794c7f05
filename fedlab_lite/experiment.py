"""run(settings) -> History: one jitted round after the other, checkpoints, and a store of finished runs.

A run is named by its settings, the content of its data and the code that decides its numbers. Finished runs are read
back; a run that was killed goes on from its last checkpoint to the bit-identical result. Seeds, and runs that differ
in step sizes, penalties or epochs alone, are trajectories of one program.
"""

import ast
import hashlib
import importlib
import inspect
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

import fedlab_lite
from fedlab_lite import clients, data, deq, files, fusion, graphs, metrics, store
from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.algorithms.base import is_leaf
from fedlab_lite.clients import Problem, replicated
from fedlab_lite.errors import InputError, MissingDataError
from fedlab_lite.fusion import fusion_weights
from fedlab_lite.graphs import make_graph
from fedlab_lite.history import History
from fedlab_lite.metrics import evaluate, message_bytes
from fedlab_lite.nn import layers, model, winograd
from fedlab_lite.nn.model import MODELS, Model, count_params, make_model
from fedlab_lite.progress import progress_bar
from fedlab_lite.settings import Settings

__all__ = ["History", "Problem", "Settings", "build_problem", "final_state", "run", "run_all", "run_key"]


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
    modules |= {layers, winograd, model, clients, fusion, graphs, metrics, importlib.import_module(family)}
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
    names = ("partition", "num_clients", "classes_per_client", "alpha", "train_size", "test_size", "common_test")
    names += ("shared_size", "shared_alpha")
    options = {name: getattr(settings, name) for name in names}
    federated = _data(files.data_dir(), settings.dataset, **options, seed=settings.data_seed)
    options = dict(settings.model_options)
    model = make_model(settings.model, federated.input_shape, federated.num_classes, **options)
    if settings.budgets:
        _check_budgets(settings, model)
        federated = replace(federated, budget=np.array(settings.budgets, np.int32))
    seen, newcomers = federated, None
    if settings.unseen_clients:
        seen, newcomers = federated.split(settings.unseen_clients)
    iterations = np.ones_like(seen.size) if seen.budget is None else seen.budget
    weight = fusion_weights(settings.fusion, seen.size, iterations)
    graph = None
    if settings.graph:
        edges = {"num_edges": settings.num_edges, "seed": settings.graph_seed}
        graph = make_graph(settings.graph, seen.num_clients, **edges)
    return Problem(seen, model, newcomers=newcomers, graph=graph, weight=weight)


def _check_budgets(settings: Settings, model: Model) -> None:
    if model.solve is None:
        raise InputError(f"budgets are for equilibrium models; {settings.model} has no solver, leave them out")
    if max(settings.budgets) > model.solve.max_iter:
        raise InputError(
            f"a client's budget is {max(settings.budgets)} iterations, but {settings.model} makes "
            f"{model.solve.max_iter} at most; raise the model's max_iter or lower the budget"
        )
    if settings.fusion.startswith("iterations") and model.solve.tol > 0:
        raise InputError(
            f"fusion {settings.fusion!r} weighs clients by the iterations they make, but with tol = {model.solve.tol} "
            "samples stop before their budget is used up; set the model's tol to 0"
        )


def _fingerprint(problem: Problem) -> str:
    parts = [part.fingerprint() for part in (problem.data, problem.newcomers) if part is not None]
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()


def _algorithm(settings: Settings):
    return make_algorithm(settings.algorithm, **dict(settings.algorithm_options))


def _over_trajectories(fn: Callable, number: int) -> Callable:
    """`fn` over the leading trajectory axis of its arguments; a single one is not batched, which is cheaper."""
    if number > 1:
        return jax.vmap(fn)

    def single(*trees):
        result = fn(*jax.tree.map(lambda leaf: leaf[0], trees))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result)

    return single


def _start(algorithm, problem, keys):
    """The state before the first round; not jitted, so that `Model.init` is compiled once for all algorithms."""
    start = _over_trajectories(lambda algorithm, key: algorithm.init(problem, key), len(keys))
    return jax.device_put(start(algorithm, keys), replicated())


@partial(jax.jit, static_argnames="cohort_size", donate_argnames="state")
def _round(algorithm, problem, state, index, sample_keys, round_keys, cohort_size: int):
    def one(algorithm, state, sample_key, round_key):
        key = jax.random.fold_in(sample_key, index)
        cohort = jax.random.choice(key, problem.num_clients, (cohort_size,), replace=False)
        return algorithm.round(problem, state, problem.dealt(cohort), jax.random.fold_in(round_key, index))

    state = _over_trajectories(one, len(sample_keys))(algorithm, state, sample_keys, round_keys)
    return jax.lax.with_sharding_constraint(state, replicated())


@partial(jax.jit, static_argnames="number")
def _judged(algorithm, problem, state, number: int):
    """Models by judgement ('': the headline), the algorithm's own scalars, and whether the state is finite."""

    def one(algorithm, state):
        models = {"": algorithm.models(problem, state)} | algorithm.other_models(problem, state)
        floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        return models, algorithm.monitor(problem, state), jnp.all(jnp.stack([jnp.isfinite(x).all() for x in floats]))

    return _over_trajectories(one, number)(algorithm, state)


@partial(jax.jit, static_argnames="number")
def _joined(algorithm, problem, state, number: int):
    """The newcomers' models by judgement."""
    join = _over_trajectories(lambda algorithm, state: algorithm.join(problem, state, jax.random.key(0)), number)
    return join(algorithm, state)


@partial(jax.jit, static_argnames="number")
def _evaluate(problem, own, shared, predictor, number: int):
    """`metrics.evaluate` for each trajectory; one program for all algorithms that share the same params."""

    def one(own, shared, predictor):
        return evaluate(problem, own, shared, predictor=predictor)

    return _over_trajectories(one, number)(own, shared, predictor)


def _judge(algorithm, problem, state, number: int):
    """Scalars by name, every client's accuracy, whether state and loss are finite; each with the trajectory axis."""
    models, monitored, finite = _judged(algorithm, problem, state, number)

    def results(problem, models):
        predictor = _over_trajectories(lambda algorithm: algorithm.predictor(), number)(algorithm)
        by = {name: None if name else predictor for name in models}  # only the headline has a predictor
        return {name: _evaluate(problem, *parts, by[name], number) for name, parts in models.items()}

    judged = results(problem, models)
    headline = judged.pop("")
    scalars = {name: values.mean(1) for name, values in headline.items()}
    rows = jnp.broadcast_to(problem.data.test_size, headline["accuracy"].shape[1:])
    scalars["accuracy_pooled"] = jnp.average(headline["accuracy"], axis=1, weights=rows)
    scalars["accuracy_gap"] = headline["accuracy"].max(1) - headline["accuracy"].min(1)
    if problem.newcomers is not None:
        unseen = replace(problem, data=problem.newcomers, newcomers=None)
        found = results(unseen, _joined(algorithm, unseen, state, number))
        judged |= {f"unseen_{name}" if name else "unseen": result for name, result in found.items()}
    for judgement, result in judged.items():
        scalars |= {f"{name}_{judgement}": result[name].mean(1) for name in ("accuracy", "loss")}
    scalars = {name: jnp.float32(values) for name, values in (scalars | monitored).items()}
    return scalars, headline["accuracy"], finite & jnp.isfinite(headline["loss"]).all(1)


class _Curves:
    """What has been measured so far; goes into every checkpoint."""

    def __init__(self, saved: dict | None = None):
        saved = saved or {"rounds": np.zeros(0, np.int32), "metrics": {}, "client_accuracy": [], "finite": True}
        self.rounds, self.metrics = saved["rounds"], saved["metrics"]
        self.client_accuracy, self.finite = saved["client_accuracy"], saved["finite"]

    def add(self, index: int, judged) -> None:
        scalars, client_accuracy, finite = jax.tree.map(np.asarray, judged)
        self.client_accuracy = [*self.client_accuracy, client_accuracy]
        self.rounds = np.append(self.rounds, np.int32(index))
        before = self.metrics or {name: np.zeros((len(finite), 0), np.float32) for name in scalars}
        self.metrics = {name: np.column_stack([before[name], value]) for name, value in scalars.items()}
        self.finite = self.finite & finite


def _trajectories(group: Sequence[Settings]):
    """The algorithm and the keys [init, sample, round] of every run and seed, stacked: run after run."""
    seeds = group[0].seeds
    algorithms = [_algorithm(settings) for settings in group for _ in seeds]
    algorithm = jax.tree.map(lambda *leaves: jnp.stack(leaves), *algorithms)
    keys = jnp.stack([jax.random.split(jax.random.key(seed), 3) for _ in group for seed in seeds])
    return algorithm, keys.T


def _train(group: Sequence[Settings], problem: Problem, key: str, advance: Callable, checkpoint_seconds: float):
    """From the last checkpoint, or from the start, to the last round. Returns state, curves and seconds."""
    settings = group[0]
    cohort_size = settings.cohort_size or problem.num_clients
    if cohort_size > problem.num_clients:
        raise InputError(f"cohort_size {cohort_size} is more than the {problem.num_clients} clients of the data")
    _algorithm(settings).check(problem)
    if _algorithm(settings).everybody and cohort_size < problem.num_clients:
        raise InputError(f"every client takes part in each round of {settings.algorithm}; leave cohort_size out")
    algorithm, (init_keys, sample_keys, round_keys) = _trajectories(group)
    number = len(init_keys)
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
        curves.add(0, _judge(algorithm, problem, state, number))
    advance(first)

    for index in range(first, settings.num_rounds):
        state = _round(algorithm, problem, state, index, sample_keys, round_keys, cohort_size)
        jax.block_until_ready(state)
        done = index + 1
        if done % settings.eval_every == 0 or done == settings.num_rounds:
            curves.add(done, _judge(algorithm, problem, state, number))
        advance(1)
        now = time.monotonic()
        pause = max(checkpoint_seconds, 10 * cost) if checkpoint_seconds else 0.0  # a large state is written less often
        if done < settings.num_rounds and now - written >= pause:
            tree = {"state": store.pack(state), "next": done, "seconds": now - began, "curves": vars(curves)}
            store.save_tree(file, tree)
            written = time.monotonic()
            cost = written - now
    return state, curves, time.monotonic() - began


_LOGIC = (_over_trajectories, _start, _round, _judged, _joined, _evaluate, _judge, _trajectories, _train)
_RUN_LOGIC = tuple(map(inspect.getsource, _LOGIC))


def describe_machine() -> dict:
    """'device' in words, and 'versions' of what computes."""
    names = ("jax", "flax", "optax", "numpy")
    versions = {name: importlib.import_module(name).__version__ for name in names}
    versions |= {"python": platform.python_version(), "fedlab_lite": fedlab_lite.__version__}
    return {"device": f"{jax.device_count()} x {jax.devices()[0].device_kind}", "versions": versions}


def run(settings: Settings, **options) -> History:
    """The history of a run: read from the store if it is finished, continued if it was interrupted, else computed.

    Args: as `run_all`, which raises what there is to raise.

    Example:
      >>> history = run(Settings(num_clients=4, num_rounds=1, model_options={"width": 8}))
      >>> history.metrics["accuracy"].shape, history.rounds.tolist()
      ((1, 2), [0, 1])
    """
    return run_all([settings], **options)[0]


def run_all(
    runs: Sequence[Settings],
    *,
    progress: bool | None = None,
    force: bool = False,
    checkpoint_seconds: float = 15.0,
    keep_state: bool = False,
) -> list[History]:
    """The histories of several runs. What the store lacks is computed; runs that differ in step sizes, penalties or
    epochs alone become one program, each a row of its batch (a sweep over rho is one run for the machine).

    Args:
      progress: show a bar; None: where somebody is watching (a terminal or Jupyter, no batch run).
      force: forget what the store has of these runs; files that cannot be read are kept as `<name>.corrupt`.
      checkpoint_seconds: time between checkpoints; 0: after every round.
      keep_state: store the final states too, for `final_state`.

    Raises: `InputError`, `MissingDataError`, `CorruptFileError` (a damaged file in the store), `OutputError`.

    Example:
      >>> sweep = [Settings(num_clients=4, num_rounds=1, algorithm_options={"lr": lr}) for lr in (0.01, 0.1)]
      >>> [history.settings.algorithm_options for history in run_all(sweep)]
      [(('lr', 0.01),), (('lr', 0.1),)]
    """
    found = {settings: _stored(settings, force, keep_state) for settings in runs}
    groups: dict[Settings, list[Settings]] = {}
    for settings in (settings for settings, history in found.items() if history is None):
        leaves = {field.name for field in fields(ALGORITHMS[settings.algorithm]) if is_leaf(field)}
        rest = tuple(pair for pair in settings.algorithm_options if pair[0] not in leaves)
        groups.setdefault(replace(settings, algorithm_options=rest), []).append(settings)
    for group in groups.values():
        found |= zip(group, _compute(group, progress, force, checkpoint_seconds, keep_state), strict=True)
    return [found[settings] for settings in runs]


def _stored(settings: Settings, force: bool, keep_state: bool) -> History | None:
    """What the store has of a run, if that is enough."""
    try:
        problem = build_problem(settings)
    except MissingDataError:  # computed on a machine that has the data, shown on one that has not
        found = sorted(files.runs_dir().glob(f"{_code_key(settings)}-*.npz"))
        if len(found) != 1 or force or keep_state:
            raise
        return History.load(found[0])
    key = run_key(settings, _fingerprint(problem))
    if force:
        store.set_aside(key)
    history = History.load(store.path(key, "npz"))
    if history is None or (keep_state and not store.path(key, "state").exists()):
        return None
    store.path(key, "ckpt").unlink(missing_ok=True)  # killed between the last write and this
    return history


def _compute(group: list[Settings], progress, force: bool, checkpoint_seconds: float, keep_state: bool):
    """Train the runs of a group together and store each."""
    problem = build_problem(group[0])
    fingerprint = _fingerprint(problem)
    keys = [run_key(settings, fingerprint) for settings in group]
    together = keys[0] if len(group) == 1 else f"{hashlib.sha256(''.join(keys).encode()).hexdigest()[:32]}-sweep"
    if force:
        store.set_aside(together)
    words = group[0].describe() + (f" · {len(group)} runs" if len(group) > 1 else "")
    with progress_bar(words, group[0].num_rounds, progress) as advance:
        state, curves, seconds = _train(group, problem, together, advance, checkpoint_seconds)
    params = jax.eval_shape(problem.model.init, jax.random.key(0))
    seeds = len(group[0].seeds)
    histories = []
    for index, (settings, key) in enumerate(zip(group, keys, strict=True)):
        rows = slice(index * seeds, (index + 1) * seeds)
        if keep_state:
            own = jax.tree.map(lambda leaf, rows=rows: leaf[rows], state)
            store.save_tree(store.path(key, "state"), {"state": store.pack(own)})
        history = History(
            settings=settings,
            rounds=curves.rounds,
            metrics={name: values[rows] for name, values in curves.metrics.items()},
            client_curves=np.stack(curves.client_accuracy, axis=1)[rows],
            diverged=tuple(not ok for ok in curves.finite[rows].tolist()),
            message_bytes=message_bytes(_algorithm(settings).messages(problem)),
            num_params={part: count_params(tree) for part, tree in params.items()},
            seconds=round(seconds / len(group), 3),
            data_source=problem.data.source,
            data_fingerprint=fingerprint,
            **describe_machine(),
        )
        history.save(store.path(key, "npz"))
        histories.append(history)
    store.path(together, "ckpt").unlink(missing_ok=True)
    store.sweep()
    return histories


def final_state(settings: Settings, **options) -> tuple[Problem, object]:
    """The problem and the state after the last round (leaves `[S, ...]`), computed if the store has it not."""
    run(settings, keep_state=True, **options)
    problem = build_problem(settings)
    algorithm, (keys, *_) = _trajectories([settings])
    like = jax.eval_shape(partial(_start, algorithm), problem, keys)
    file = store.path(run_key(settings, _fingerprint(problem)), "state")
    return problem, store.unpack(file, store.load_tree(file)["state"], like)
