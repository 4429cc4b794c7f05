"""The contract of an algorithm: which of its hyper-parameters are data, and what may be checked when it is made."""

import inspect
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import blobs

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.engine import train
from fedlab_lite.engine.algorithm import numbers_of
from fedlab_lite.papers import presets
from fedlab_lite.runs import Settings
from fedlab_lite.util import InputError

POSTPONED = """
from __future__ import annotations
from dataclasses import dataclass
from fedlab_lite.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Postponed(FedAvg):
    share: float = 0.5
    bound: float | None = None
    words: str = "few"
"""


def test_types_that_a_file_writes_as_text():
    """`from __future__ import annotations`: its floats are data of the compiled round, as everywhere else."""
    names = {"__name__": __name__}
    exec(POSTPONED, names)
    postponed = names["Postponed"]
    assert numbers_of(postponed) == (*numbers_of(FedAvg), "share", "bound")
    leaves = jax.tree.leaves(postponed(share=0.25))
    assert 0.25 in leaves
    assert len(jax.tree.leaves(postponed(bound=2.0))) == len(leaves) + 1


def test_a_type_that_its_file_does_not_know():
    names = {"__name__": __name__}
    exec(POSTPONED.replace("words: str", "words: Unheard"), names)
    with pytest.raises(InputError, match="the types of Postponed's fields cannot be read: name 'Unheard'"):
        jax.tree.leaves(names["Postponed"]())


@dataclass(frozen=True)
class Careful(FedAvg):
    """It looks at its numbers when it is made."""

    share: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if self.share > 1 or self.epochs < 1 or self.lr > 10:
            raise InputError("too much or too little")


def test_checks_of_numbers_when_an_algorithm_is_made():
    """They run once, for numbers, and never for the tracers of a compiled round: here of newcomers' training."""
    with pytest.raises(InputError, match="too much"):
        Careful(share=2.0)
    seen, unseen = blobs().data.split(3)
    history, _ = train(replace(blobs(), data=seen, newcomers=unseen), Careful(epochs=1), num_rounds=1)
    assert np.isfinite(history.metrics["accuracy_unseen"]).all()


def test_one_answer_for_a_step_size_of_0():
    """However an algorithm is made: by its class, by its name, in settings, or in a preset's overrides."""
    makers = {
        "FedAvg": lambda lr: FedAvg(lr=lr),
        "algorithm fedavg": lambda lr: make_algorithm("fedavg", lr=lr),
        "algorithm fedavg in settings": lambda lr: Settings(algorithm_options={"lr": lr}),
        "a preset": lambda lr: presets.settings("fedeq", "fig04_mlp_vs_deq_mlp", "quick", lr=lr),
    }
    for make in makers.values():
        for lr in (0, 0.0, -1.0, float("nan")):
            with pytest.raises(InputError, match=r"^lr.* must be of type float, above 0, got"):
                make(lr)


CELL = """
from dataclasses import dataclass
from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.util.fields import one_of, ranged

@dataclass(frozen=True)
class Odd(FedAvg):
    nesterov: bool = False
    sizes: tuple[int, ...] = (3, 2)
    depths: tuple[int, ...] = ranged((), 1, empty=True)
    shift: float = -1.0
    tilt: float = ranged(-0.5, -1, 1)
    pace: str = one_of("slow", "fast")
"""


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"])
def test_fields_of_every_kind(monkeypatch, first):
    """Of a class that a notebook's cell makes, whether or not its types are text."""
    names = {"__name__": "__main__"}
    exec(first + CELL, names)
    Odd = names["Odd"]
    monkeypatch.setitem(ALGORITHMS, "odd", Odd)
    assert numbers_of(Odd) == (*numbers_of(FedAvg), "shift", "tilt")
    made = make_algorithm("odd", nesterov=True, sizes=[1, 2], shift=-3, tilt=-1, pace="fast")
    assert made == Odd(nesterov=True, sizes=(1, 2), shift=-3.0, tilt=-1.0, pace="fast")
    assert isinstance(made.shift, float)
    settings = Settings(algorithm="odd", algorithm_options={"nesterov": True, "sizes": [4], "shift": -2})
    assert dict(settings.algorithm_options) == {"nesterov": True, "sizes": (4,), "shift": -2.0}
    hash(settings)
    for options, words in (
        ({"nesterov": 1}, r"nesterov of WHO must be of type bool, True or False, got 1 \(int\)"),
        ({"shift": True}, r"shift of WHO must be of type float, finite, got True \(bool\)"),
        ({"sizes": 3}, r"sizes of WHO must be of type tuple\[int, ...\], .*got 3 \(int\)"),
        ({"depths": (2, -1)}, r"depths of WHO must be of type tuple\[int, ...\], each at least 1, got \(2, -1\)"),
        ({"shift": float("inf")}, r"shift of WHO must be of type float, finite, got inf"),
        ({"tilt": -2}, r"tilt of WHO must be of type float, -1 to 1, got -2"),
        ({"pace": "fats"}, r"pace of WHO must be one of slow, fast, got 'fats'; did you mean 'fast'"),
    ):
        with pytest.raises(InputError, match=words.replace("WHO", "algorithm odd")):
            make_algorithm("odd", **options)
        with pytest.raises(InputError, match=words.replace("WHO", "algorithm odd")):
            Settings(algorithm="odd", algorithm_options=options)
        with pytest.raises(InputError, match=words.replace("WHO", "Odd")):
            Odd(**options)


def test_other_values():
    before = FedAvg(lr=0.5, epochs=2)
    after = before.with_values(epochs=jnp.int32(7))
    assert (before.epochs, int(after.epochs), after.lr) == (2, 7, 0.5)
    with pytest.raises(InputError, match="unknown hyper-parameter of FedAvg 'epoch'; did you mean 'epochs'"):
        before.with_values(epoch=7)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_round_makes_an_algorithm_anew(name):
    """`dataclasses.replace` of itself would check tracers, where a subclass checks numbers."""
    assert "replace(self" not in inspect.getsource(inspect.getmodule(ALGORITHMS[name]))


def test_a_hyper_parameter_that_does_not_exist():
    """The name that is near, and not Python's own message; FeDEQ's server has multipliers and no optimiser."""
    with pytest.raises(InputError, match="unknown hyper-parameter of FedAvg 'lrr'; did you mean 'lr'"):
        FedAvg(lrr=1)
    with pytest.raises(InputError, match="unknown hyper-parameter of FeDEQ 'server_optimizer'"):
        ALGORITHMS["fedeq"](server_optimizer=None)
