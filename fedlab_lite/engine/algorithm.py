"""The contract of an algorithm. A new one is one file, one line in `algorithms/__init__.py`, and the common test."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from functools import partial
from typing import Any, ClassVar, get_args

import jax
import optax

from fedlab_lite.engine.local import ClientData, local_train
from fedlab_lite.engine.problem import Problem, RoundContext
from fedlab_lite.util import InputError

Models = tuple[dict, dict]


@dataclass(frozen=True)
class Algorithm(ABC):
    """Hyper-parameters that every algorithm here has; each subclass adds its own and names the paper's symbol.

    A pytree: step sizes, penalties (all floats) and numbers of epochs are its leaves, everything else is its structure.
    So a compiled round takes them as data, and one program serves a whole grid of them; another integer or a word is
    another program, and so is a number in place of None.

    The state is a dictionary. The entries that `owned` names belong to the clients: their leaves are stacked over all
    clients on axis 0, and lie shared out over the devices.
    """

    lr: float = 0.01  # eta, step size of local training
    batch_size: int = 10  # rows a local step
    momentum: float | None = None  # of local training: the heavy ball's share of the last step, from rest in each round
    weight_decay: float | None = None  # added to the gradient: this times the params
    clip: float | None = None  # a longer gradient (L2 norm over all params) is scaled to this length
    lr_decay: float | None = None  # factor on the step sizes, a round
    join_epochs: int = 3  # passes over a newcomer's rows before it is judged (FeDEQ, Sec. V-B5)

    version: ClassVar[int] = 2  # of its numbers: part of every run's name
    everybody: ClassVar[bool] = False  # whether each round needs all clients
    owned: ClassVar[tuple[str, ...]] = ()  # entries of the state that belong to the clients
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)  # what `lr_decay` applies to

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node(cls, _split, partial(_join, cls))

    @abstractmethod
    def init(self, problem: Problem, key: jax.Array) -> dict:
        """The state before the first round."""

    @abstractmethod
    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        """One communication round with the clients `at.cohort`: pure and jit-able."""

    @abstractmethod
    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        """What client i is judged with, `shared | own_i`: the parts `own`, stacked, and the parts `shared` by all."""

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """Further judgements by name, each like `models`."""
        return {}

    def predictor(self) -> Callable | None:
        """How the models of `models` answer, if not by themselves: a pytree, called as `engine.evaluate` says."""
        return

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The models of clients that took no part in the training, after adapting to their rows: `engine.data`.

        By judgement, '' being the headline, each like `models`.
        """
        raise InputError(f"{type(self).__name__} does not say how newcomers join; give it a method `join`")

    def check(self, problem: Problem) -> None:
        """Raise `InputError` if these hyper-parameters do not fit this problem."""
        return

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """What is worth a curve: residuals, Lagrangians. Numbers, or `[clients]`, of which the mean is reported."""
        return {}

    def optimizer(self, lr: jax.Array | float | None = None) -> optax.GradientTransformation:
        """What a client trains with: SGD at `lr` (None: this algorithm's) with what is asked for of the rest."""
        clip = [] if self.clip is None else [optax.clip_by_global_norm(self.clip)]
        decay = [] if self.weight_decay is None else [optax.add_decayed_weights(self.weight_decay)]
        return optax.chain(*clip, *decay, optax.sgd(self.lr if lr is None else lr, momentum=self.momentum))

    def train(self, loss: Callable, params: Any, data: ClientData, key: jax.Array, **options: Any) -> Any:
        """`engine.local_train` with this algorithm's optimizer and batch size."""
        return local_train(loss, params, data, key, self.optimizer(), batch_size=self.batch_size, **options)

    def of_round(self, index: jax.Array) -> "Algorithm":
        """This algorithm as it is in round `index`: with the step sizes that `lr_decay` leaves."""
        if self.lr_decay is None:
            return self
        names = [field.name for field in fields(self) if is_leaf(field, getattr(self, field.name))]
        factors = [self.lr_decay**index if name in self.step_sizes else 1 for name in names]
        leaves, structure = jax.tree.flatten(self)
        return jax.tree.unflatten(structure, [leaf * by for leaf, by in zip(leaves, factors, strict=True)])

    def for_cohort(self, problem: Problem, update: Callable, at: RoundContext, *rows: Any, shared: tuple = ()) -> Any:
        """`update(problem, data, key, *rows, *shared)`, a method of this algorithm, for every client of the cohort.

        The algorithm itself travels with what is shared, so that its numbers stay data.
        """

        def client(data, key, *args):
            *args, algorithm = args
            return update.__func__(algorithm, problem, data, key, *args)

        return problem.for_cohort(client, at, *rows, shared=(*shared, self))


def is_leaf(field: Field, value: Any = 0.0) -> bool:
    """Whether a hyper-parameter is data of a compiled round: not one that is None, or "static" in its metadata."""
    numbers = field.type is float or float in get_args(field.type) or field.name.endswith("epochs")
    return numbers and value is not None and not field.metadata.get("static")


def _split(algorithm: Algorithm):
    """Leaves (in order) and structure (names and values of the rest), as a pytree node is taken apart."""
    leaves = [field.name for field in fields(algorithm) if is_leaf(field, getattr(algorithm, field.name))]
    rest = tuple((name, value) for name, value in vars(algorithm).items() if name not in leaves)
    return [getattr(algorithm, name) for name in leaves], (tuple(leaves), rest)


def _join(cls: type[Algorithm], structure, leaves) -> Algorithm:
    """The inverse; without __init__, whose checks are for numbers and not for tracers."""
    names, rest = structure
    algorithm = object.__new__(cls)
    vars(algorithm).update(rest, **dict(zip(names, leaves, strict=True)))
    return algorithm
