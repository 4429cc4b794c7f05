"""The last round of FedReCo's code, which its paper does not mention: every client tunes its own model once more.

With FedReCo a client trains its head for nine epochs, then its extractor for one. With other methods that have one head
per client it trains the head alone, for ten. What is judged after that is the code's result. Ditto has no such round.

FedReCo's extractors are then fresh from local training, and those of the others are an average. To judge all at the
same moment, `alike` gives every method the round that FedReCo has.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fedlab_lite.algorithms import FedReCo
from fedlab_lite.algorithms.parts import alternate
from fedlab_lite.engine import ClientData, History, Problem, evaluate, fit_head
from fedlab_lite.runs import algorithm_of, measured, run_names, store

WHAT = "clients_after_last_rounds"  # of the stored numbers: every client's accuracy, after either round


def after_last_round(runs: Mapping[str, History], *, alike: bool = False, train: bool = False) -> dict[str, History]:
    """The runs as if they ended with the code's last round.

    Args:
      runs: of algorithms with one head per client.
      alike: every method has FedReCo's last round, so that all are judged after training head and extractor.
      train: compute what is not stored, which trains a run again unless its final state is stored.

    Returns: histories with one evaluation, of the seeds that are stored. There are none at all if a run has none of
      its seeds stored, and nothing is to be computed.
    """
    seeds = {name: run.seeds if train else _stored(run) for name, run in runs.items()}
    if not all(seeds.values()):
        return {}
    return {name: _ended(run, seeds[name], "alike" if alike else "code") for name, run in runs.items()}


def _stored(run: History) -> tuple[int, ...]:
    names = zip(run.seeds, run_names(run), strict=True)
    return tuple(seed for seed, name in names if store.find(name, f"{WHAT}.npz"))


def _ended(run: History, seeds: tuple[int, ...], which: str) -> History:
    run, settings = run.with_seeds(seeds), replace(run.settings, seeds=seeds)
    clients = measured(settings, WHAT, partial(_measure, algorithm_of(settings)))[which]
    last = {"num_rounds": run.num_rounds + 1, "rounds": np.array([run.num_rounds + 1])}
    last |= {"metrics": {"accuracy": clients.mean(1, keepdims=True)}, "client_curves": clients[:, None]}
    return replace(run, settings=settings, **last)


def _measure(algorithm: Any, problem: Problem, state: dict) -> dict[str, jax.Array]:
    models = {"code": tuned(algorithm, problem, state), "alike": tuned(algorithm, problem, state, alike=True)}
    return {which: evaluate(problem, *each)["accuracy"] for which, each in models.items()}


@partial(jax.jit, static_argnames="alike")
def tuned(algorithm: Any, problem: Problem, state: dict, *, alike: bool = False) -> tuple[dict, dict]:
    """The models after the round."""
    key = jax.random.key(0)  # of the order of rows
    own, theta = {name: state[name] for name in algorithm.owned}, state["theta"]
    update = tune_head_and_extractor if alike or isinstance(algorithm, FedReCo) else tune_head
    new = algorithm.for_cohort(problem, update, problem.everyone(key), own, shared=(theta,))
    shared = {} if "representation" in new else {"representation": theta}
    return new, shared


def tune_head(algorithm: Any, problem: Problem, data: ClientData, key: jax.Array, own: dict, theta: dict) -> dict:
    """The last round of a client with a head of its own, on the shared extractor."""
    options = {"epochs": 10, "batch_size": algorithm.batch_size}
    return {"head": fit_head(problem, theta, own["heads"], data, key, algorithm.client_optimizer(), **options)}


def tune_head_and_extractor(
    algorithm: Any, problem: Problem, data: ClientData, key: jax.Array, own: dict, theta: dict
) -> dict:
    """The last round of a client of FedReCo, in which nothing is sent; others start it from the shared extractor."""
    for_head, for_body = {"epochs": 9}, {"epochs": 1}
    if isinstance(algorithm, FedReCo):
        new = algorithm.local_steps(problem, data, key, own, theta, for_head, for_body)
        return {"representation": new["thetas"], "head": new["heads"]}
    u, v = alternate(algorithm, problem, data, key, own["heads"], theta, for_head=for_head, for_body=for_body)
    return {"representation": u, "head": v}
