"""The contract of an algorithm. A new one is one file, one line in `algorithms/__init__.py`, and the common test."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax

from fedlab_lite.clients import Problem


@dataclass(frozen=True)
class Algorithm(ABC):
    """Hyper-parameters that every algorithm here has; each subclass adds its own and names the paper's symbol."""

    lr: float = 0.01  # eta, step size of local SGD
    batch_size: int = 10  # rows a local step

    @abstractmethod
    def init(self, problem: Problem, key: jax.Array):
        """The state before the first round: a pytree; what clients own is stacked on axis 0."""

    @abstractmethod
    def round(self, problem: Problem, state, cohort: jax.Array, key: jax.Array):
        """One communication round with the clients `cohort [m]`: pure and jit-able."""

    @abstractmethod
    def models(self, problem: Problem, state) -> dict:
        """Stacked params: what client i is judged with."""

    @abstractmethod
    def messages(self, problem: Problem) -> dict:
        """{'up': tree, 'down': tree} of `jax.ShapeDtypeStruct`: what crosses the network for one sampled client."""

    def other_models(self, problem: Problem, state) -> dict[str, dict]:
        """Further judgements by name, each like `models`."""
        return {}

    def monitor(self, problem: Problem, state) -> dict[str, jax.Array]:
        """Scalars worth a curve: residuals, Lagrangians."""
        return {}

    def _sgd(self) -> dict:
        return {"lr": self.lr, "batch_size": self.batch_size}


def shapes(problem: Problem) -> dict:
    """Shapes of the model's params, without computing them."""
    return jax.eval_shape(problem.model.init, jax.random.key(0))


def nothing_moves() -> dict:
    """`messages` of an algorithm without communication."""
    return {"up": {}, "down": {}}


def both_ways(tree) -> dict:
    """`messages` of an algorithm that sends the same tree up and down."""
    return {"up": tree, "down": tree}
