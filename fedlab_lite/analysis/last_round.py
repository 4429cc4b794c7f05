"""The last round of FedReCo's code, which its paper does not mention: every client tunes its own model once more.

With FedReCo a client trains its head for nine epochs, then its extractor for one. With other methods that have one head
per client it trains the head alone, for ten. What is judged after that is the code's result. Ditto has no such round.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fedlab_lite.algorithms import FedReCo
from fedlab_lite.engine import ClientData, History, Problem, evaluate, fit_head
from fedlab_lite.runs import algorithm_of, measured, run_names, store

WHAT = "clients_after_last_round"  # of the stored numbers: every client's accuracy


def after_last_round(runs: Mapping[str, History], *, train: bool = False) -> dict[str, History]:
    """The runs as if they ended with the code's last round, for the seeds that they have in common.

    Args:
      runs: of algorithms with one head per client.
      train: compute what is not stored, which trains a run again unless its final state is stored.

    Returns: histories with one evaluation; none at all if something is not stored, and is not to be computed.
    """
    seeds = tuple(seed for seed in next(iter(runs.values())).seeds if all(seed in run.seeds for run in runs.values()))
    settings = {name: replace(run.settings, seeds=seeds) for name, run in runs.items()}
    files = [f for name, run in runs.items() for f in run_names(replace(run, seeds=seeds))]
    if not train and not all(store.find(name, f"{WHAT}.npz") for name in files):
        return {}
    return {name: _ended(run, settings[name]) for name, run in runs.items()}


def _ended(run: History, settings: Any) -> History:
    clients = measured(settings, WHAT, partial(_measure, algorithm_of(settings)))["accuracy"]
    last = {"num_rounds": run.num_rounds + 1, "rounds": np.array([run.num_rounds + 1])}
    last |= {"metrics": {"accuracy": clients.mean(1, keepdims=True)}, "client_curves": clients[:, None]}
    return replace(run, seeds=settings.seeds, settings=settings, diverged=(False,) * len(clients), **last)


def _measure(algorithm: Any, problem: Problem, state: dict) -> dict[str, jax.Array]:
    return {"accuracy": evaluate(problem, *tuned(algorithm, problem, state))["accuracy"]}


@jax.jit
def tuned(algorithm: Any, problem: Problem, state: dict) -> tuple[dict, dict]:
    """The models after the round."""
    key = jax.random.key(0)  # of the order of rows
    own = {name: state[name] for name in algorithm.owned}
    update = tune_head_and_extractor if isinstance(algorithm, FedReCo) else tune_head
    new = algorithm.for_cohort(problem, update, problem.everyone(key), own, shared=(state["theta"],))
    return algorithm.models(problem, state | new, key)


def tune_head(algorithm: Any, problem: Problem, data: ClientData, key: jax.Array, own: dict, theta: dict) -> dict:
    """The last round of a client with a head of its own, on the shared extractor."""
    options = {"epochs": 10, "batch_size": algorithm.batch_size}
    return {"heads": fit_head(problem, theta, own["heads"], data, key, algorithm.client_optimizer(), **options)}


def tune_head_and_extractor(
    algorithm: FedReCo, problem: Problem, data: ClientData, key: jax.Array, own: dict, u_0: dict
) -> dict:
    """The last round of a client of FedReCo, in which nothing is sent."""
    return algorithm.local_steps(problem, data, key, own, u_0, {"epochs": 9}, {"epochs": 1})
