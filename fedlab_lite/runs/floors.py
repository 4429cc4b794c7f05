"""The floor of a run: the work that it has to do, from its settings, before anything is computed.

The work of one round and of one judgement is counted from their jaxprs, see `engine.work_of`, as an accelerator
executes them: clients in groups. Data that are not on this machine are replaced by arrays of their form.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedlab_lite.data import Federated, federated
from fedlab_lite.engine import Algorithm, Plan, Problem, evaluate, in_groups
from fedlab_lite.engine.curves import judgements
from fedlab_lite.engine.groups import judging_step, training_step
from fedlab_lite.engine.work import Work, work_of
from fedlab_lite.runs.build import algorithm_of, build_problem, partition_of
from fedlab_lite.runs.settings import Settings
from fedlab_lite.util import MissingDataError

TFLOPS = 20.0  # useful products per second, in 10^12 operations, that rounds may reach on a card of 2023
STAND_INS = {"femnist": "glyphs", "shakespeare": "roles", "harbox": "motion"}  # embedded data of the same form
BLANK = {"cifar10": 10, "cifar100": 100, "fashion_mnist": 10}  # 60,000 pictures, a sixth for testing: their classes


def floor(settings: Settings) -> Work:
    """The work of one seed's run on an accelerator.

    Example:
      >>> small = {"dataset": "digits", "partition": "iid", "num_clients": 4, "train_size": 80}
      >>> short, long = (floor(Settings(**small, num_rounds=rounds, eval_every=100)) for rounds in (10, 20))
      >>> 1.5 < long.flops / short.flops < 2, long.useful == long.flops  # two judgements each; equal clients
      (True, True)
    """
    algorithm, problem = algorithm_of(settings), replace(_problem(settings), executor="map")
    clients = Plan(settings.num_rounds, settings.cohort_size).clients_per_round(problem)
    key, sizes = jax.random.key(0), np.asarray(problem.data.size)
    state = jax.eval_shape(algorithm.init, problem, key)
    spaced = np.linspace(0, len(sizes) - 1, clients).round().astype(int)
    cohort = np.sort(np.argsort(sizes)[spaced])  # as unequal as all clients are
    groups = in_groups(replace(problem, executor="vmap"), algorithm, clients, devices=1)
    steps = -(-sizes[cohort] // algorithm.batch_size)
    of_each = np.broadcast_to(problem.data.test_size, len(sizes))  # where all share one test set, each has it
    tests = -(-of_each // 100)
    each_round = _batched(work_of(_round, algorithm, problem, state, cohort, key), steps, groups.clients_at_once)
    judgement = _batched(work_of(_judged, algorithm, problem, state, key), tests, groups.judged_at_once)
    judged = 1 + -(-settings.num_rounds // settings.eval_every)
    rows = min(algorithm.batch_size, problem.data.y.shape[1])
    of_steps = (
        (training_step(problem, rows), groups.clients_at_once or clients),
        (judging_step(problem), groups.judged_at_once or len(sizes)),
    )
    memory = max(step.memory * at_once for step, at_once in of_steps)
    return each_round.times(settings.num_rounds).then(judgement.times(judged))._replace(memory=memory)


def _batched(work: Work, steps: np.ndarray, at_once: int | None) -> Work:
    """The work of clients one after the other, if so many of similar size are batched: padded, and with fewer steps."""
    at_once = min(at_once or len(steps), len(steps))
    share = float(np.sort(steps)[::-1][::at_once].sum() / steps.sum())  # of the steps, those of each batch's longest
    return work.times(share * at_once, 1.0)._replace(steps=work.steps * share)


def minutes(work: Work, tflops: float = TFLOPS) -> float:
    """The minutes that the products of a run take at so many TFLOP/s."""
    return work.flops / tflops / 60e12


def _round(algorithm: Algorithm, problem: Problem, state: dict, cohort: Any, key: jax.Array) -> dict:
    return algorithm.round(problem, state, problem.at(0, cohort, key))


def _judged(algorithm: Algorithm, problem: Problem, state: dict, key: jax.Array) -> list[dict]:
    """What a judgement of these clients computes, see `engine.curves.judge`."""
    models = {"": algorithm.models(problem, state, key)} | algorithm.other_models(problem, state, key)
    found = judgements(problem, models, lambda unseen: algorithm.join(unseen, state, key), algorithm.predictor())
    return [evaluate(of, *parts, predictor=predictor) for of, *parts, predictor in found.values()]


def _problem(settings: Settings) -> Problem:
    """The problem of a run, on its data or on arrays of their form; of several that seeds draw, the first."""
    settings = settings.of_seed(settings.seeds[0])
    try:
        return build_problem(settings)
    except MissingDataError:
        if settings.dataset in STAND_INS:
            return build_problem(replace(settings, dataset=STAND_INS[settings.dataset]))
        return build_problem(settings, _blank(settings))


def _blank(settings: Settings) -> Federated:
    """Black pictures with the labels of a published data set, divided like it."""
    classes = BLANK[settings.dataset]
    side, channels = (28, 1) if settings.dataset == "fashion_mnist" else (32, 3)
    x, y = np.zeros((60_000, side, side, channels), np.uint8), np.arange(60_000, dtype=np.int32) % classes
    return federated(x, y, **partition_of(settings), test_fraction=1 / 6)
