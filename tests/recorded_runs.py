"""Settings and an algorithm for tests of runs: five ragged clients, and rounds that are counted by hand."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.engine import Algorithm, History, training
from fedlab_lite.runs import Settings, run, run_all
from fedlab_lite.util import files


def all_of(runs, **options) -> list[History]:
    """The histories of a list of settings, in its order."""
    return list(run_all(dict(enumerate(runs)), **options).values())


@dataclass(frozen=True)
class Recorder(Algorithm):
    """Adds `lr` to every parameter of a round and remembers who was sampled; judged in two ways."""

    def init(self, problem, key):
        zeros = jax.tree.map(jnp.zeros_like, problem.model.init(key))
        return {"params": zeros, "seen": jnp.zeros(problem.num_clients), "key": key, "last": jnp.zeros(())}

    owned = ("seen",)

    def round(self, problem, state, at):
        cohort = at.cohort[at.order()]
        seen = state["seen"].at[cohort].add(1)
        problem.downlink({})
        problem.transmit(at, jnp.zeros((len(at.cohort), 5)))
        params = jax.tree.map(lambda leaf: leaf + self.lr, state["params"])
        distinct = jnp.all(jnp.diff(jnp.sort(cohort)) > 0)
        return {"params": params, "seen": seen, "key": at.key, "last": jnp.float32(distinct)}

    def models(self, problem, state, key):
        return {}, state["params"]

    def other_models(self, problem, state, key):
        return {"same": self.models(problem, state, key)}

    def join(self, problem, state, key):
        return {"": self.models(problem, state, key), "again": self.models(problem, state, key)}

    def monitor(self, problem, state):
        return {"seen": state["seen"].sum(), "distinct": state["last"], "bias": state["params"]["head"]["bias"][0]}


def recorder(**options) -> Settings:
    return Settings(**{"algorithm": "recorder", "num_clients": 5, "num_rounds": 4, "cohort_size": 2} | options)


def fedavg(**options) -> Settings:
    base = {"algorithm": "fedavg", "algorithm_options": {"lr": 0.1, "epochs": 1}, "num_clients": 5, "num_rounds": 6}
    return Settings(**base | {"cohort_size": 3, "seeds": (3, 4)} | options)


def same(a: History, b: History) -> bool:
    """Equal to the bit in all but the time taken."""
    arrays = [(a.rounds, b.rounds), (a.client_accuracy, b.client_accuracy)]
    arrays += [(a.metrics[name], b.metrics[name]) for name in a.metrics | b.metrics]
    about = [(each.seeds, each.num_rounds, each.diverged, each.data_fingerprint) for each in (a, b)]
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in arrays) and about[0] == about[1]


class Killed(BaseException):
    """Ends the process as far as `run` can tell."""


def interrupted(settings, monkeypatch, at=3):
    """Leave a checkpoint behind."""
    original = training._round

    def stop(*args):
        if args[3] == at:
            raise Killed
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_round", stop)
        with pytest.raises(Killed):
            run(settings, checkpoint_seconds=0)
    return next(files.runs_dir().glob("*.ckpt"))
