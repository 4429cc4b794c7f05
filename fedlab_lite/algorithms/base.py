"""The contract of an algorithm. A new one is one file, one line in `algorithms/__init__.py`, and the common test."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import partial

import jax

from fedlab_lite.clients import Problem


@dataclass(frozen=True)
class Algorithm(ABC):
    """Hyper-parameters that every algorithm here has; each subclass adds its own and names the paper's symbol.

    A pytree: the float hyper-parameters are its leaves, everything else is its structure. So a compiled round takes
    step sizes and penalties as data, and one program serves a whole grid of them; an integer or a word is a program.
    """

    lr: float = 0.01  # eta, step size of local SGD
    batch_size: int = 10  # rows a local step

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

    def monitor(self, problem: Problem, state) -> dict[str, jax.Array]:
        """Scalars worth a curve: residuals, Lagrangians."""
        return {}

    def _sgd(self) -> dict:
        return {"lr": self.lr, "batch_size": self.batch_size}


def _split(algorithm: Algorithm):
    """Leaves (the floats, in order) and structure (names and values of the rest), as a pytree node is taken apart."""
    floats = [field.name for field in fields(algorithm) if field.type is float]
    rest = tuple((name, value) for name, value in vars(algorithm).items() if name not in floats)
    return [getattr(algorithm, name) for name in floats], (tuple(floats), rest)


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
