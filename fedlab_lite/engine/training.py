"""Training on any problem with any algorithm: rounds, evaluations and curves.

A trajectory is an algorithm with its numbers and a seed. One program serves all trajectories that differ in numbers
only. They run one after the other, so that each gives the same bits whatever else is trained. Where several fill a
device better, they run in batches.
"""

import importlib
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedlab_lite
from fedlab_lite.data import Federated, apart
from fedlab_lite.engine.algorithm import Algorithm
from fedlab_lite.engine.devices import placed, put_on_devices, replicated, to_host
from fedlab_lite.engine.evaluation import evaluate, majority_baseline, message_bytes
from fedlab_lite.engine.history import History
from fedlab_lite.engine.problem import Problem
from fedlab_lite.nn import count_params
from fedlab_lite.util import InputError, progress_bar

ENGINE = 2  # version of the numerics of this package's rounds, judgements and data: part of every run's name

Trajectory = tuple[Algorithm, int]  # an algorithm and a seed


@dataclass(frozen=True)
class Plan:
    """The plan of a training: number of rounds, clients per round, and rounds between evaluations."""

    num_rounds: int
    cohort_size: int | None = None  # None: all clients
    eval_every: int = 1

    def clients_a_round(self, problem: Problem) -> int:
        return problem.num_clients if self.cohort_size is None else self.cohort_size

    def check(self, problem: Problem, algorithm: Algorithm) -> None:
        """Raise `InputError` where this plan does not fit the problem or the algorithm."""
        clients, cohort_size = problem.num_clients, self.clients_a_round(problem)
        for name, value, least in (("num_rounds", self.num_rounds, 0), ("eval_every", self.eval_every, 1)):
            if value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
        if not 1 <= cohort_size <= clients:
            raise InputError(
                f"cohort_size is {cohort_size} of {clients} clients; choose 1 to {clients}, or None for all of them"
            )
        algorithm.check(problem)
        if algorithm.everybody and cohort_size < clients:
            name = type(algorithm).__name__
            raise InputError(f"every client takes part in each round of {name}; leave cohort_size out")


def _over(fn: Callable, number: int) -> Callable:
    """Map `fn` over the leading axis of its arguments, one entry per trajectory.

    A single trajectory has no such axis.
    """
    return jax.vmap(fn) if number > 1 else fn


def _stacked(trees: Sequence[Any]) -> Any:
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def part(tree: Any, index: int, number: int) -> Any:
    """The part of one trajectory in a tree of all trajectories, see `_over`."""
    return tree if number == 1 else jax.tree.map(lambda leaf: leaf[index], tree)


def places(algorithm: Algorithm, problem: Problem, state: dict, number: int) -> dict:
    """The placement of each leaf of a state: entries that clients own are distributed over the devices."""
    owned = placed(problem.num_clients, axis=int(number > 1))
    return {
        name: jax.tree.map(lambda _, name=name: owned if name in algorithm.owned else replicated(), entry)
        for name, entry in state.items()
    }


def place_problem(problem: Problem) -> Problem:
    """The problem placed on the devices: each client's rows on the device that owns it, all else on every device."""

    def of(data: Federated | None) -> Federated | None:
        if data is None:
            return None
        own, test = placed(data.num_clients), placed(len(data.test_size))
        where = {"x": own, "y": own, "budget": own, "test_x": test, "test_y": test, "test_size": test}
        where |= {"size": replicated(), "shared_x": replicated()}
        there = {name: place for name, place in where.items() if getattr(data, name) is not None}
        stacked, pools, together = apart({name: getattr(data, name) for name in there})
        spots = jax.tree.leaves(there)
        stacked = [put_on_devices(leaf, spot) for leaf, spot in zip(stacked, spots, strict=True)]
        return replace(data, **together(stacked, put_on_devices(pools, replicated())))

    rest = put_on_devices((problem.graph, problem.weight, problem.channel), replicated())
    moved = dict(zip(("graph", "weight", "channel"), rest, strict=True))
    moved |= {name: of(getattr(problem, name)) for name in ("data", "newcomers", "validation")}
    return replace(problem, **moved)


def start(algorithms: Sequence[Algorithm], problem: Problem, keys: Sequence[jax.Array]) -> dict:
    """The states before the first round, made on the devices where they stay.

    A round donates its state, so every leaf is a copy: an algorithm may keep the same params under two names. In one
    process it is not jitted as a whole, so that `Model.init` is compiled once for all algorithms.
    """

    def make(algorithms, problem, keys):
        return [algorithm.init(problem, key) for algorithm, key in zip(algorithms, keys, strict=True)]

    if jax.process_count() > 1:
        shapes = jax.eval_shape(make, algorithms, problem, keys)
        where = places(algorithms[0], problem, shapes[0], len(keys))
        return jax.jit(lambda *args: _stacked(make(*args)), out_shardings=where)(algorithms, problem, keys)
    states = make(algorithms, problem, keys)
    where = places(algorithms[0], problem, states[0], len(keys))
    return jax.tree.map(jnp.copy, jax.device_put(_stacked(states), where))


@partial(jax.jit, static_argnames=("cohort_size", "number"), donate_argnames="state")
def _round(algorithm, problem, state, index, sample_keys, round_keys, cohort_size: int, number: int):
    def one(algorithm, state, sample_key, round_key):
        key = jax.random.fold_in(sample_key, index)
        cohort = jax.random.choice(key, problem.num_clients, (cohort_size,), replace=False)
        at = problem.at(index, cohort, jax.random.fold_in(round_key, index))
        return algorithm.of_round(index).round(problem, state, at)

    new = _over(one, number)(algorithm, state, sample_keys, round_keys)
    return jax.lax.with_sharding_constraint(new, places(algorithm, problem, new, number))


@partial(jax.jit, static_argnames="number")
def _judged(algorithm, problem, state, keys, number: int):
    """The models by judgement ('': the headline), the algorithm's own curves, and whether the state is finite."""

    def one(algorithm, state, key):
        models = {"": algorithm.models(problem, state, key)} | algorithm.other_models(problem, state, key)
        floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        return models, algorithm.monitor(problem, state), jnp.all(jnp.stack([jnp.isfinite(x).all() for x in floats]))

    return _over(one, number)(algorithm, state, keys)


@partial(jax.jit, static_argnames="number")
def _joined(algorithm, problem, state, keys, number: int):
    """The newcomers' models by judgement."""
    return _over(lambda algorithm, state, key: algorithm.join(problem, state, key), number)(algorithm, state, keys)


@partial(jax.jit, static_argnames="number")
def _evaluate(problem, own, shared, predictor, number: int):
    """Apply `engine.evaluate` to each trajectory; one program serves all algorithms with the same params."""

    def one(own, shared, predictor):
        return evaluate(problem, own, shared, predictor=predictor)

    return _over(one, number)(own, shared, predictor)


def _judge(algorithm, problem: Problem, state, keys, number: int) -> tuple[dict, np.ndarray, np.ndarray]:
    """The curves by name, every client's headline, and whether state and loss are finite; each `[trajectories, ...]`.

    Means over clients are taken on the host, where nothing depends on how clients are distributed over devices.
    """
    models, monitored, finite = _judged(algorithm, problem, state, keys, number)

    def results(problem, models):
        predictor = _over(lambda algorithm: algorithm.predictor(), number)(algorithm)
        by = {name: None if name else predictor for name in models}  # only the headline has a predictor
        return {name: host(_evaluate(problem, *parts, by[name], number)) for name, parts in models.items()}

    def host(tree):
        return jax.tree.map(lambda leaf: to_host(leaf).reshape(number, -1).astype(np.float64), tree)

    judged = results(problem, models)
    own = judged.pop("")
    name = problem.task.headline
    curves = {metric: values.mean(1) for metric, values in own.items() if metric != "counted"}
    curves[f"{name}_pooled"] = np.average(own[name], axis=1, weights=own["counted"])
    curves[f"{name}_gap"] = own[name].max(1) - own[name].min(1)
    if problem.validation is not None:
        held_out = replace(problem, data=problem.validation)
        judged["validation"] = results(held_out, {"": models[""]})[""]
    if problem.judge_training:
        rows = {"test_x": problem.data.x, "test_y": problem.data.y, "test_size": problem.data.size}
        trained_on = replace(problem, data=replace(problem.data, **rows))
        judged["training"] = results(trained_on, {"": models[""]})[""]
    if problem.newcomers is not None:
        unseen = replace(problem, data=problem.newcomers, newcomers=None)
        found = results(unseen, _joined(algorithm, unseen, state, keys, number))
        judged |= {f"unseen_{which}" if which else "unseen": result for which, result in found.items()}
    for which, result in judged.items():
        curves |= {f"{metric}_{which}": result[metric].mean(1) for metric in (name, "loss")}
    curves |= {metric: values.mean(1) for metric, values in host(monitored).items()}
    curves = {metric: values.astype(np.float32) for metric, values in curves.items()}
    return curves, own[name].astype(np.float32), to_host(finite).reshape(-1) & np.isfinite(own["loss"]).all(1)


@dataclass
class Progress:
    """The measurements of one trajectory so far, and its next round; stored in every checkpoint."""

    next: int = 0  # the next round
    seconds: float = 0.0
    rounds: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    metrics: dict[str, np.ndarray] = field(default_factory=dict)  # [E]
    client_curves: np.ndarray | None = None  # [E, clients]
    finite: bool = True

    def add(self, index: int, curves: dict, clients: np.ndarray, finite: np.ndarray) -> None:
        self.rounds = np.append(self.rounds, np.int32(index))
        self.metrics = {
            name: np.append(self.metrics.get(name, np.float32([])), value) for name, value in curves.items()
        }
        before = np.zeros((0, len(clients)), np.float32) if self.client_curves is None else self.client_curves
        self.client_curves = np.concatenate([before, clients[None]])
        self.finite = bool(self.finite and finite)


def advance(
    problem: Problem,
    trajectories: Sequence[Trajectory],
    plan: Plan,
    *,
    states: dict | None = None,
    progress: Sequence[Progress] | None = None,
    after_round: Callable[[dict, Sequence[Progress]], None] = lambda states, progress: None,
) -> tuple[dict, Sequence[Progress]]:
    """Train trajectories, as one batch, from their present round to the last one.

    Args:
      problem: on the devices, see `place_problem`.
      trajectories: algorithms that differ in their numbers only, each with its seed.
      states: on the devices, after `progress[i].next` rounds, which is the same for all; leaves `[trajectories, ...]`,
        but those of a single trajectory have no such axis. None: from the start.
      after_round: called with states and progress after every round but the last.

    Returns: the states after the last round, and the measurements.
    """
    number = len(trajectories)
    algorithms = [algorithm for algorithm, _ in trajectories]
    keys = [jax.random.split(jax.random.key(seed), 4) for _, seed in trajectories]
    init_keys, sample_keys, round_keys, judge_keys = zip(*keys, strict=True)
    algorithm, sample_keys, round_keys, judge_keys = jax.tree.map(
        jnp.asarray, tuple(map(_stacked, (algorithms, sample_keys, round_keys, judge_keys)))
    )
    began = time.monotonic()

    def judge(done: int) -> None:
        keys = _over(lambda key: jax.random.fold_in(key, done), number)(judge_keys)
        curves, clients, finite = _judge(algorithm, problem, states, keys, number)
        for i, each in enumerate(progress):
            each.add(done, {name: values[i] for name, values in curves.items()}, clients[i], finite[i])

    if states is None:
        progress = [Progress() for _ in trajectories]
        states = start(algorithms, problem, init_keys)
        judge(0)
    spent = [each.seconds for each in progress]
    for index in range(progress[0].next, plan.num_rounds):
        cohort_size = plan.clients_a_round(problem)
        states = _round(algorithm, problem, states, index, sample_keys, round_keys, cohort_size, number)
        jax.block_until_ready(states)
        done = index + 1
        if done % plan.eval_every == 0 or done == plan.num_rounds:
            judge(done)
        for each, before in zip(progress, spent, strict=True):
            each.next, each.seconds = done, before + (time.monotonic() - began) / number
        if done < plan.num_rounds:
            after_round(states, progress)
    return states, progress


def describe_machine() -> dict[str, Any]:
    """A dictionary of 'device' (a description) and 'versions' (of the libraries that compute)."""
    names = ("jax", "flax", "optax", "numpy")
    versions = {name: importlib.import_module(name).__version__ for name in names}
    versions |= {"python": platform.python_version(), "fedlab_lite": fedlab_lite.__version__}
    return {"device": f"{jax.device_count()} x {jax.devices()[0].device_kind}", "versions": versions}


def history_of(
    problem: Problem, trajectory: Trajectory, plan: Plan, found: Progress, fingerprint: str, at_once: int = 1
) -> History:
    """The history of one finished trajectory."""
    algorithm, seed = trajectory
    constant, test_labels = majority_baseline(problem)
    params = jax.eval_shape(problem.model.init, jax.random.key(0))
    return History(
        seeds=(seed,),
        num_rounds=plan.num_rounds,
        rounds=found.rounds,
        metrics={name: values[None] for name, values in found.metrics.items()},
        client_curves=found.client_curves[None],
        diverged=(not found.finite,),
        message_bytes=message_bytes(problem, algorithm),
        num_params={part: count_params(tree) for part, tree in params.items()},
        seconds=round(found.seconds, 3),
        data_source=problem.data.source,
        data_fingerprint=fingerprint,
        about={"dataset": problem.data.name, "model": problem.model.name, "algorithm": type(algorithm).__name__},
        headline=problem.task.headline,
        constant=constant,
        test_labels=test_labels,
        trajectories_at_once=at_once,
        **describe_machine(),
    )


def train(
    problem: Problem,
    algorithm: Algorithm,
    *,
    num_rounds: int,
    seeds: Sequence[int] = (0,),
    cohort_size: int | None = None,
    eval_every: int = 1,
    progress: bool | None = None,
) -> tuple[History, dict]:
    """Train an algorithm on a problem; both may be of classes that a notebook cell defines.

    Nothing is stored; `runs.run` does the same for settings, with a store of finished runs and checkpoints.

    Args:
      seeds: one trajectory per seed, which draws initial params, cohorts and the order of rows.
      cohort_size: clients per round; None: all.
      eval_every: rounds between evaluations; the last round is always evaluated.
      progress: show a progress bar; None: only in a terminal or Jupyter.

    Returns: the history, and the state after the last round, its leaves stacked over seeds, `[S, ...]`. One seed's
    models are `algorithm.models(problem, jax.tree.map(lambda leaf: leaf[0], state), key)`: client i's own parts, and
    the parts that all share.

    Raises: `InputError` where algorithm, problem and numbers do not fit together.

    Example:
      >>> from fedlab_lite.algorithms import FedAvg
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=80)
      >>> problem = Problem(data, make_model("mlp", data.input_shape, data.num_classes, width=8))
      >>> history, state = train(problem, FedAvg(lr=0.1, epochs=1), num_rounds=2)
      >>> history.metrics["accuracy"].shape, state["params"]["head"]["bias"].shape
      ((1, 3), (1, 10))
    """
    plan = Plan(num_rounds, cohort_size, eval_every)
    plan.check(problem, algorithm)
    fingerprint = problem.data.fingerprint()
    on_devices = place_problem(problem)
    parts, states = [], []
    words = f"{type(algorithm).__name__} · {problem.model.name} · {problem.data.name}"
    with progress_bar(words, num_rounds * len(seeds), progress) as tick:
        for seed in seeds:
            state, (found,) = advance(on_devices, [(algorithm, seed)], plan, after_round=lambda *_: tick(1))
            tick(min(1, num_rounds))
            parts.append(history_of(problem, (algorithm, seed), plan, found, fingerprint))
            states.append(state)
    return History.stack(parts), jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
