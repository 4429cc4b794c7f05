"""Training on any problem with any algorithm: rounds, evaluations and curves.

A trajectory is an algorithm with its numbers and a seed. One program serves all trajectories that differ in numbers
only. They run one after the other, so that each gives the same bits whatever else is trained. Where several fill a
device better, they run in batches.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedlab_lite.data import Federated, apart
from fedlab_lite.engine.algorithm import Algorithm
from fedlab_lite.engine.clients import executor_here
from fedlab_lite.engine.curves import Progress, judge, over
from fedlab_lite.engine.devices import placed, put_on_devices, replicated
from fedlab_lite.engine.evaluation import has_own_models, majority_baseline, message_bytes, own_majority
from fedlab_lite.engine.groups import in_groups
from fedlab_lite.engine.history import History
from fedlab_lite.engine.problem import Problem
from fedlab_lite.nn import count_params
from fedlab_lite.util import InputError, progress_bar
from fedlab_lite.util.fields import LARGEST, Count, Range, check_fields, check_value
from fedlab_lite.util.jax_setup import describe_machine

ENGINE = 2  # version of the numerics of this package's rounds, judgements and data: part of every run's name

Trajectory = tuple[Algorithm, int]  # an algorithm and a seed


@dataclass(frozen=True)
class Plan:
    """The plan of a training: number of rounds, clients per round, and rounds between evaluations."""

    num_rounds: Annotated[int, Range(0)]
    cohort_size: Count | None = None  # None: all clients
    eval_every: Count = 1

    def clients_per_round(self, problem: Problem) -> int:
        return problem.num_clients if self.cohort_size is None else self.cohort_size

    def check(self, problem: Problem, algorithm: Algorithm) -> None:
        """Raise `InputError` where this plan does not fit the problem or the algorithm."""
        if isinstance(algorithm, type):
            raise InputError(f"algorithm is the class {algorithm.__name__}; use an object: {algorithm.__name__}()")
        if not isinstance(algorithm, Algorithm):
            raise InputError(f"algorithm is {algorithm!r}, not an Algorithm; use an object of a class in fl.algorithms")
        check_fields(self)
        clients, cohort_size = problem.num_clients, self.clients_per_round(problem)
        if cohort_size > clients:
            raise InputError(f"cohort_size is {cohort_size} of {clients} clients; use 1 to {clients}, or None for all")
        algorithm.check(problem)
        if algorithm.needs_all_clients and cohort_size < clients:
            name = type(algorithm).__name__
            raise InputError(f"all clients take part in each round of {name}; leave cohort_size out")


def _stacked(trees: Sequence[Any]) -> Any:
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def part(tree: Any, index: int, number: int) -> Any:
    """The part of one trajectory in a tree of all trajectories, see `curves.over`."""
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
        where = dict.fromkeys(("x", "y", "budget"), own) | dict.fromkeys(("test_x", "test_y", "test_size"), test)
        where |= dict.fromkeys(("size", "shared_x"), replicated())
        there = {name: place for name, place in where.items() if getattr(data, name) is not None}
        stacked, pools, together = apart({name: getattr(data, name) for name in there})
        spots = jax.tree.leaves(there)
        stacked = [put_on_devices(leaf, spot) for leaf, spot in zip(stacked, spots, strict=True)]
        return replace(data, **together(stacked, put_on_devices(pools, replicated())))

    graph, weight, channel = put_on_devices((problem.graph, problem.weight, problem.channel), replicated())
    rows = {name: of(getattr(problem, name)) for name in ("data", "newcomers", "validation")}
    return replace(problem, graph=graph, weight=weight, channel=channel, **rows)


def start(algorithms: Sequence[Algorithm], problem: Problem, keys: Sequence[jax.Array]) -> dict:
    """The states before the first round, made on the devices where they stay.

    A round donates its state, so every leaf is a copy: an algorithm may keep the same params under two names. In one
    process it is not jitted as a whole, so that `Model.init` is compiled once for all algorithms.
    """

    def make(algorithms, problem, keys):
        return _stacked([algorithm.init(problem, key) for algorithm, key in zip(algorithms, keys, strict=True)])

    if jax.process_count() > 1:
        where = places(algorithms[0], problem, jax.eval_shape(make, algorithms, problem, keys), len(keys))
        return jax.jit(make, out_shardings=where)(algorithms, problem, keys)
    states = make(algorithms, problem, keys)
    return jax.tree.map(jnp.copy, jax.device_put(states, places(algorithms[0], problem, states, len(keys))))


@partial(jax.jit, static_argnames=("cohort_size", "number"), donate_argnames="state")
def _round(algorithm, problem, state, index, keys, cohort_size: int, number: int):
    def one(algorithm, state, keys):
        sample_key, round_key = (jax.random.fold_in(key, index) for key in keys[1:3])
        cohort = jax.random.choice(sample_key, problem.num_clients, (cohort_size,), replace=False)
        return algorithm.of_round(index).round(problem, state, problem.at(index, cohort, round_key))

    new = over(one, number)(algorithm, state, keys)
    return jax.lax.with_sharding_constraint(new, places(algorithm, problem, new, number))


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
    algorithms, algorithm, each_keys, keys = _numbers_of(trajectories)
    began = time.monotonic()

    def measure(done: int) -> None:
        judge_keys = over(lambda keys: jax.random.fold_in(keys[3], done), number)(keys)
        curves, clients, finite = judge(algorithm, problem, states, judge_keys, number)
        for i, each in enumerate(progress):
            each.add(done, {name: values[i] for name, values in curves.items()}, clients[i], finite[i])

    if states is None:
        progress = [Progress() for _ in trajectories]
        states = start(algorithms, problem, [keys[0] for keys in each_keys])
        measure(0)
    spent, here = [each.seconds for each in progress], describe_machine()
    for each in progress:
        each.computed_by(here, number)
    for index in range(progress[0].next, plan.num_rounds):
        states = _round(algorithm, problem, states, index, keys, plan.clients_per_round(problem), number)
        jax.block_until_ready(states)
        done = index + 1
        if done % plan.eval_every == 0 or done == plan.num_rounds:
            measure(done)
        for each, before in zip(progress, spent, strict=True):
            each.next, each.seconds = done, before + (time.monotonic() - began) / number
        if done < plan.num_rounds:
            after_round(states, progress)
    return states, progress


def _numbers_of(trajectories: Sequence[Trajectory]) -> tuple[list[Algorithm], Algorithm, list, Any]:
    """The algorithms and keys (for init, cohorts, rounds and judging) of trajectories, one by one and as one batch."""
    algorithms = [algorithm for algorithm, _ in trajectories]
    each_keys = [jax.random.split(jax.random.key(seed), 4) for _, seed in trajectories]
    algorithm, keys = jax.tree.map(jnp.asarray, (_stacked(algorithms), _stacked(each_keys)))
    return algorithms, algorithm, each_keys, keys


def compile_round(problem: Problem, trajectories: Sequence[Trajectory], plan: Plan) -> None:
    """Compile a round and judge once, so that JAX's cache on disk has the programs; `problem` is on the devices."""
    number = len(trajectories)
    algorithms, algorithm, each_keys, keys = _numbers_of(trajectories)
    states = start(algorithms, problem, [keys[0] for keys in each_keys])
    _round.lower(algorithm, problem, states, 0, keys, plan.clients_per_round(problem), number).compile()
    judge(algorithm, problem, states, over(lambda keys: keys[3], number)(keys), number)


def history_of(problem: Problem, trajectory: Trajectory, plan: Plan, found: Progress, fingerprint: str) -> History:
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
        own_constant=own_majority(problem) if has_own_models(problem, algorithm) else constant,
        test_labels=test_labels,
        trajectories_at_once=found.trajectories_at_once,
        executor=executor_here(problem.executor),
        clients_at_once=problem.clients_at_once,
        **found.made,
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
      progress: show a progress bar, in Jupyter with a curve of the headline; None: only in a terminal or Jupyter.

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
    plan, seeds = Plan(num_rounds, cohort_size, eval_every), tuple(seeds) if isinstance(seeds, Sequence) else seeds
    plan.check(problem, algorithm)
    check_value("seeds", seeds, tuple[int, ...], Range(0, LARGEST))
    fingerprint = problem.data.fingerprint()
    problem = in_groups(problem, algorithm, plan.clients_per_round(problem))
    on_devices = place_problem(problem)
    parts, states, headline = [], [], problem.task.headline
    words = f"{type(algorithm).__name__} · {problem.model.name} · {problem.data.name}"
    with progress_bar(words, num_rounds * len(seeds), progress) as tick:
        for seed in seeds:
            state, (found,) = advance(
                on_devices,
                [(algorithm, seed)],
                plan,
                after_round=lambda _, found: tick(1, {headline: found[0].metrics[headline]}),
            )
            tick(min(1, num_rounds))
            parts.append(history_of(problem, (algorithm, seed), plan, found, fingerprint))
            states.append(state)
    return History.stack(parts), jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
