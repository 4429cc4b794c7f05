"""The contract of an algorithm. A new one is one file, one line in `algorithms/__init__.py`, and the common test."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedlab_lite.clients import Problem


@dataclass(frozen=True)
class Algorithm(ABC):
    """Hyper-parameters that every algorithm here has; each subclass adds its own and names the paper's symbol.

    A pytree: step sizes, penalties (all floats) and numbers of epochs are its leaves, everything else is its structure.
    So a compiled round takes them as data, and one program serves a whole grid of them; another integer or a word is
    another program.
    """

    lr: float = 0.01  # eta, step size of local SGD
    batch_size: int = 10  # rows a local step
    join_epochs: int = 3  # passes over a newcomer's rows before it is judged (FeDEQ, Sec. V-B5)

    everybody: ClassVar[bool] = False  # whether each round needs all clients

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node(cls, _split, partial(_join, cls))

    @abstractmethod
    def init(self, problem: Problem, key: jax.Array):
        """The state before the first round: a pytree; what clients own is stacked on axis 0."""

    @abstractmethod
    def round(self, problem: Problem, state, cohort: jax.Array, key: jax.Array):
        """One communication round with the clients `cohort [m]`: pure and jit-able."""

    @abstractmethod
    def models(self, problem: Problem, state) -> tuple[dict, dict]:
        """What client i is judged with, `shared | own_i`: the parts `own`, stacked, and the parts `shared` by all."""

    @abstractmethod
    def messages(self, problem: Problem) -> dict:
        """{'up': tree, 'down': tree} of `jax.ShapeDtypeStruct`: what crosses the network for one sampled client."""

    def other_models(self, problem: Problem, state) -> dict[str, tuple[dict, dict]]:
        """Further judgements by name, each like `models`."""
        return {}

    def predictor(self) -> Callable | None:
        """How the models of `models` answer, if not by themselves: a pytree, called as `metrics.evaluate` says."""
        return

    @abstractmethod
    def join(self, problem: Problem, state, key: jax.Array) -> dict[str, tuple[dict, dict]]:
        """The models of clients that took no part in the training, after adapting to their rows: `problem.data`.

        By judgement, '' being the headline, each like `models`.
        """

    def check(self, problem: Problem) -> None:
        """Raise `InputError` if these hyper-parameters do not fit this problem."""
        return

    def monitor(self, problem: Problem, state) -> dict[str, jax.Array]:
        """Scalars worth a curve: residuals, Lagrangians."""
        return {}

    def for_cohort(self, problem: Problem, update: Callable, cohort: jax.Array, key: jax.Array, *rows, shared=()):
        """`update(problem, data, key, *rows, *shared)`, a method of this algorithm, for every client of `cohort [m]`.

        The algorithm itself travels with what is shared, so that a sweep may batch its hyper-parameters.
        """

        def client(data, key, *args):
            *args, algorithm = args
            return update.__func__(algorithm, problem, data, key, *args)

        return problem.for_cohort(client, cohort, key, *rows, shared=(*shared, self))

    def for_everybody(self, problem: Problem, update: Callable, key: jax.Array, *rows, shared=()):
        """`for_cohort` with all clients of the problem."""
        return self.for_cohort(problem, update, jnp.arange(problem.num_clients), key, *rows, shared=shared)

    def _sgd(self) -> dict:
        return {"lr": self.lr, "batch_size": self.batch_size}


def is_leaf(field: Field) -> bool:
    """Whether a hyper-parameter is data of a compiled round."""
    return field.type is float or field.name.endswith("epochs")


def _split(algorithm: Algorithm):
    """Leaves (in order) and structure (names and values of the rest), as a pytree node is taken apart."""
    leaves = [field.name for field in fields(algorithm) if is_leaf(field)]
    rest = tuple((name, value) for name, value in vars(algorithm).items() if name not in leaves)
    return [getattr(algorithm, name) for name in leaves], (tuple(leaves), rest)


def _join(cls: type[Algorithm], structure, leaves) -> Algorithm:
    """The inverse; without __init__, whose checks are for numbers and not for tracers."""
    names, rest = structure
    algorithm = object.__new__(cls)
    vars(algorithm).update(rest, **dict(zip(names, leaves, strict=True)))
    return algorithm


def shapes(problem: Problem) -> dict:
    """Shapes of the model's params, without computing them."""
    return jax.eval_shape(problem.model.init, jax.random.key(0))


def nothing_moves() -> dict:
    """`messages` of an algorithm without communication."""
    return {"up": {}, "down": {}}


def both_ways(tree) -> dict:
    """`messages` of an algorithm that sends the same tree up and down."""
    return {"up": tree, "down": tree}
