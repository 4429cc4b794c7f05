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
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

import fedlab_lite
from fedlab_lite import clients, data, deq, files, fusion, graphs, metrics, store, training
from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.algorithms.base import is_leaf
from fedlab_lite.clients import Problem
from fedlab_lite.errors import InputError, MissingDataError
from fedlab_lite.fusion import fusion_weights
from fedlab_lite.graphs import make_graph
from fedlab_lite.history import History
from fedlab_lite.metrics import message_bytes
from fedlab_lite.nn import model, winograd
from fedlab_lite.nn.model import MODELS, Model, count_params, make_model
from fedlab_lite.progress import progress_bar
from fedlab_lite.settings import Settings
from fedlab_lite.training import algorithm_of, start, train, trajectories

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


def _with_imports(module: ModuleType, package: str) -> set[ModuleType]:
    """A module and those of the same package ("fedlab_lite.nn.") that it builds on."""
    found = {module}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(package):
            found |= _with_imports(importlib.import_module(node.module), package)
    return found


@lru_cache(maxsize=128)
def numerics(algorithm: type, family: str) -> str:
    """Hash of the code that can change the numbers of a run with this algorithm class and model family (a module).

    Comments, docstrings and other algorithms do not count, so they invalidate no results.
    """
    folder = Path(deq.__file__).parent
    modules = {importlib.import_module(f"fedlab_lite.deq.{file.stem}") for file in folder.glob("[a-z]*.py")}
    modules |= {winograd, model, clients, fusion, graphs, metrics, training}
    modules |= _with_imports(inspect.getmodule(algorithm), "fedlab_lite.algorithms.")
    modules |= _with_imports(importlib.import_module(family), "fedlab_lite.nn.")
    sources = [inspect.getsource(module) for module in sorted(modules, key=lambda module: module.__name__)]
    return hashlib.sha256("\n".join(map(_normalised, sources)).encode()).hexdigest()


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


def data_fingerprint(problem: Problem) -> str:
    """A hash of what the clients, newcomers among them, train on and are judged with."""
    parts = [part.fingerprint() for part in (problem.data, problem.newcomers) if part is not None]
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()


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
    key = run_key(settings, data_fingerprint(problem))
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
    fingerprint = data_fingerprint(problem)
    keys = [run_key(settings, fingerprint) for settings in group]
    together = keys[0] if len(group) == 1 else f"{hashlib.sha256(''.join(keys).encode()).hexdigest()[:32]}-sweep"
    if force:
        store.set_aside(together)
    words = group[0].describe() + (f" · {len(group)} runs" if len(group) > 1 else "")
    with progress_bar(words, group[0].num_rounds, progress) as advance:
        state, curves, seconds = train(group, problem, together, advance, checkpoint_seconds)
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
            message_bytes=message_bytes(algorithm_of(settings).messages(problem)),
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
    algorithm, (keys, *_) = trajectories([settings])
    like = jax.eval_shape(partial(start, algorithm), problem, keys)
    file = store.path(run_key(settings, data_fingerprint(problem)), "state")
    return problem, store.unpack(file, store.load_tree(file)["state"], like)
