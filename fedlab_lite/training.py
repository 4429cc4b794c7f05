"""What a run computes: rounds, judgements and curves, from the last checkpoint to the last round.

Seeds, and runs that differ in step sizes, penalties or epochs alone, are trajectories of one program: everything here
has them on the leading axis. This module's source is part of every run's name (see `experiment.numerics`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite import store
from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.algorithms.base import Algorithm
from fedlab_lite.clients import Problem, replicated
from fedlab_lite.errors import InputError
from fedlab_lite.metrics import evaluate
from fedlab_lite.settings import Settings


def algorithm_of(settings: Settings) -> Algorithm:
    """The algorithm of a run with its hyper-parameters."""
    return make_algorithm(settings.algorithm, **dict(settings.algorithm_options))


def _over_trajectories(fn: Callable, number: int) -> Callable:
    """`fn` over the leading trajectory axis of its arguments; a single one is not batched, which is cheaper."""
    if number > 1:
        return jax.vmap(fn)

    def single(*trees):
        result = fn(*jax.tree.map(lambda leaf: leaf[0], trees))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result)

    return single


def start(algorithm, problem, keys):
    """The state before the first round; not jitted, so that `Model.init` is compiled once for all algorithms.

    A round donates its state, so every leaf is a copy: an algorithm may keep the same params under two names.
    """
    init = _over_trajectories(lambda algorithm, key: algorithm.init(problem, key), len(keys))
    return jax.tree.map(jnp.copy, jax.device_put(init(algorithm, keys), replicated()))


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


def trajectories(group: Sequence[Settings]):
    """The algorithm and the keys [init, sample, round] of every run and seed, stacked: run after run."""
    seeds = group[0].seeds
    algorithms = [algorithm_of(settings) for settings in group for _ in seeds]
    algorithm = jax.tree.map(lambda *leaves: jnp.stack(leaves), *algorithms)
    keys = jnp.stack([jax.random.split(jax.random.key(seed), 3) for _ in group for seed in seeds])
    return algorithm, keys.T


def train(group: Sequence[Settings], problem: Problem, key: str, advance: Callable, checkpoint_seconds: float):
    """From the last checkpoint, or from the start, to the last round. Returns state, curves and seconds."""
    settings = group[0]
    cohort_size = settings.cohort_size or problem.num_clients
    if cohort_size > problem.num_clients:
        raise InputError(f"cohort_size {cohort_size} is more than the {problem.num_clients} clients of the data")
    algorithm_of(settings).check(problem)
    if algorithm_of(settings).everybody and cohort_size < problem.num_clients:
        raise InputError(f"every client takes part in each round of {settings.algorithm}; leave cohort_size out")
    algorithm, (init_keys, sample_keys, round_keys) = trajectories(group)
    number = len(init_keys)
    problem = jax.device_put(problem, replicated())
    began = written = time.monotonic()
    cost = 0.0

    file = store.path(key, "ckpt")
    saved = store.load_tree(file)
    if saved:
        like = jax.eval_shape(partial(start, algorithm), problem, init_keys)
        state = jax.device_put(store.unpack(file, saved["state"], like), replicated())
        curves, first = _Curves(saved["curves"]), saved["next"]
        began -= saved["seconds"]
    else:
        state, curves, first = start(algorithm, problem, init_keys), _Curves(), 0
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
