"""The curves of trajectories: every client's model is judged, and what was measured so far is kept."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.engine.algorithm import MOMENTS
from fedlab_lite.engine.devices import to_host
from fedlab_lite.engine.evaluation import evaluate
from fedlab_lite.engine.problem import Problem
from fedlab_lite.util.jax_setup import joined


def over(fn: Callable, number: int) -> Callable:
    """Map `fn` over the leading axis of its arguments, one entry per trajectory.

    A single trajectory has no such axis.
    """
    return jax.vmap(fn) if number > 1 else fn


@partial(jax.jit, static_argnames="number")
def _judged(algorithm, problem, state, keys, number: int):
    """The models by judgement ('': the headline), the algorithm's own curves, and whether the state is finite."""

    def one(algorithm, state, key):
        models = {"": algorithm.models(problem, state, key)} | algorithm.other_models(problem, state, key)
        floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        return models, algorithm.monitor(problem, state), jnp.all(jnp.stack([jnp.isfinite(x).all() for x in floats]))

    return over(one, number)(algorithm, state, keys)


@partial(jax.jit, static_argnames="number")
def _joined(algorithm, problem, state, keys, number: int):
    """The newcomers' models by judgement."""
    return over(lambda algorithm, state, key: algorithm.join(problem, state, key), number)(algorithm, state, keys)


@partial(jax.jit, static_argnames="number")
def _evaluate(problem, own, shared, predictor, number: int):
    """Apply `engine.evaluate` to each trajectory; one program serves all algorithms with the same params."""

    def one(own, shared, predictor):
        return evaluate(problem, own, shared, predictor=predictor)

    return over(one, number)(own, shared, predictor)


def judgements(problem: Problem, models: dict, join: Callable[[Problem], dict], predictor) -> dict[str, tuple]:
    """What is judged, by the suffix of its curves: the problem whose rows are judged, the models and the predictor.

    Args:
      models: the clients' models by judgement; '' is the headline. At both moments of a round they have the predictor.
      join: gives the newcomers' models.
    """
    personal = ("", *MOMENTS)
    found = {name: (problem, *parts, predictor if name in personal else None) for name, parts in models.items()}
    own, shared = models[""]
    if problem.validation is not None:
        found["validation"] = (replace(problem, data=problem.validation), own, shared, predictor)
    if problem.judge_training:
        rows = {"test_x": problem.data.x, "test_y": problem.data.y, "test_size": problem.data.size}
        found["training"] = (replace(problem, data=replace(problem.data, **rows)), own, shared, predictor)
    if problem.newcomers is not None:
        unseen = replace(problem, data=problem.newcomers, newcomers=None)
        for name, parts in join(unseen).items():
            found[f"unseen_{name}" if name else "unseen"] = (unseen, *parts, None if name else predictor)
    return found


def judge(algorithm, problem: Problem, state, keys, number: int) -> tuple[dict, np.ndarray, np.ndarray]:
    """The curves by name, every client's headline, and whether state and loss are finite; each `[trajectories, ...]`.

    Means over clients are taken on the host, where nothing depends on how clients are distributed over devices.
    """
    models, monitored, finite = _judged(algorithm, problem, state, keys, number)
    predictor = over(lambda algorithm: algorithm.predictor(), number)(algorithm)

    def host(tree):
        return jax.tree.map(lambda leaf: to_host(leaf).reshape(number, -1).astype(np.float64), tree)

    def join(unseen):
        return _joined(algorithm, unseen, state, keys, number)

    found = judgements(problem, models, join, predictor)
    judged = {name: host(_evaluate(*each, number)) for name, each in found.items()}
    own = judged.pop("")
    name = problem.task.headline
    curves = {metric: values.mean(1) for metric, values in own.items() if metric != "counted"}
    curves[f"{name}_pooled"] = np.average(own[name], axis=1, weights=own["counted"])
    curves[f"{name}_gap"] = np.ptp(own[name], axis=1)
    for which, result in judged.items():
        curves |= {f"{metric}_{which}": result[metric].mean(1) for metric in (name, "loss")}
        if which in MOMENTS:
            curves[f"{name}_gap_{which}"] = np.ptp(result[name], axis=1)
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
    made: dict[str, Any] = field(default_factory=dict)  # what computed, see `jax_setup.describe_machine`
    trajectories_at_once: int = 1

    def computed_by(self, here: dict[str, Any], trajectories_at_once: int) -> None:
        """Note what computes from now on, beside what computed before an interruption."""
        self.made = joined([self.made, here])
        self.trajectories_at_once = max(self.trajectories_at_once, trajectories_at_once)

    def add(self, index: int, curves: dict, clients: np.ndarray, finite: np.ndarray) -> None:
        self.rounds = np.append(self.rounds, np.int32(index))
        unknown = np.full(len(self.rounds) - 1, np.nan, np.float32)  # where an earlier version wrote the checkpoint
        self.metrics = {name: np.append(self.metrics.get(name, unknown), new) for name, new in curves.items()}
        before = np.zeros((0, len(clients)), np.float32) if self.client_curves is None else self.client_curves
        self.client_curves = np.concatenate([before, clients[None]])
        self.finite = bool(self.finite and finite)
