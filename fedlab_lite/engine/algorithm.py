"""The contract of an algorithm. A new one is one file, one line in `algorithms/__init__.py`, and the common test."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any, ClassVar, Self, get_args

import jax
import optax

from fedlab_lite.engine.local import ClientData, local_train
from fedlab_lite.engine.problem import Problem, RoundContext
from fedlab_lite.util import InputError, choose
from fedlab_lite.util.fields import check_fields, hints_of, ranged

Models = tuple[dict, dict]


@dataclass(frozen=True)
class Algorithm(ABC):
    """Hyper-parameters that every algorithm here has; each subclass adds its own and names the paper's symbol.

    A pytree: step sizes, penalties (all floats) and numbers of epochs are its leaves, everything else is its structure.
    So a compiled round takes them as data, and one program serves a whole grid of them; another integer or a word is
    another program, and so is a number in place of None, or another optimiser. A field says its range by `ranged`, its
    words by `one_of`. A `__post_init__` may check numbers: it runs where somebody makes an algorithm, never in a
    compiled round.

    An optimiser is an object of optax, so it is an argument of the class, and no option of `Settings`.

    The state is a dictionary. The entries that `owned` names belong to the clients: their leaves are stacked over all
    clients on axis 0, and lie shared out over the devices.
    """

    lr: float = ranged(0.01, 0, above=True)  # eta, step size of local training by SGD
    batch_size: int = ranged(10, 1)  # rows a local step
    momentum: float | None = ranged(None, 0)  # the heavy ball's share of the last step, from rest in each round
    weight_decay: float | None = ranged(None, 0)  # added to the gradient: this times the params
    clip: float | None = ranged(None, 0, above=True)  # a longer gradient (L2 norm, all params) is scaled to this
    lr_decay: float | None = ranged(None, 0, 1)  # factor on the step sizes, a round
    join_epochs: int = ranged(3, 0)  # passes over a newcomer's rows before it is judged (FeDEQ, Sec. V-B5)
    optimizer: optax.GradientTransformation | None = None  # all local training, in place of SGD with the numbers above

    version: ClassVar[int] = 2  # of its numbers: part of every run's name
    everybody: ClassVar[bool] = False  # whether each round needs all clients
    owned: ClassVar[tuple[str, ...]] = ()  # entries of the state that belong to the clients
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)  # what `lr_decay` applies to

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node(cls, _split, partial(_join, cls))

    def __post_init__(self):
        """Each value against its field's type and range; a subclass that has checks of its own calls this as well."""
        check_optimizers(self)
        check_fields(self, type(self).__name__, known=lambda value: not isinstance(value, jax.Array))

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
        """The models of clients that took no part in the training, after adapting to their rows: `problem.data`.

        By judgement, '' being the headline, each like `models`.
        """
        raise InputError(f"{type(self).__name__} does not say how newcomers join; give it a method `join`")

    def check(self, problem: Problem) -> None:
        """Raise `InputError` if these hyper-parameters do not fit this problem."""
        return

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """What is worth a curve: residuals, Lagrangians. Numbers, or `[clients]`, of which the mean is reported."""
        return {}

    def client_optimizer(self, lr: jax.Array | float | None = None) -> optax.GradientTransformation:
        """What a client trains with: `optimizer`, or SGD at `lr` (None: this algorithm's) with what is asked for."""
        if self.optimizer is not None:
            return self.optimizer
        clip = [] if self.clip is None else [optax.clip_by_global_norm(self.clip)]
        decay = [] if self.weight_decay is None else [optax.add_decayed_weights(self.weight_decay)]
        return optax.chain(*clip, *decay, optax.sgd(self.lr if lr is None else lr, momentum=self.momentum))

    def train(self, loss: Callable, params: Any, data: ClientData, key: jax.Array, **options: Any) -> Any:
        """`engine.local_train` with this algorithm's optimiser and batch size."""
        return local_train(loss, params, data, key, self.client_optimizer(), batch_size=self.batch_size, **options)

    def with_values(self, **changes: Any) -> Self:
        """This algorithm with other values of some hyper-parameters, in a compiled round as well.

        `dataclasses.replace` would run `__post_init__`, whose checks are for numbers and not for tracers.
        """
        for name in changes:
            choose(f"hyper-parameter of {type(self).__name__}", name, hints_of(type(self)))
        algorithm = object.__new__(type(self))
        vars(algorithm).update(vars(self), **changes)
        return algorithm

    def of_round(self, index: jax.Array) -> "Algorithm":
        """This algorithm as it is in round `index`: with the step sizes that `lr_decay` leaves."""
        if self.lr_decay is None:
            return self
        factors = [self.lr_decay**index if name in self.step_sizes else 1 for name in _leaves(self)]
        leaves, structure = jax.tree.flatten(self)
        return jax.tree.unflatten(structure, [leaf * by for leaf, by in zip(leaves, factors, strict=True)])

    def for_cohort(self, problem: Problem, update: Callable, at: RoundContext, *rows: Any, shared: tuple = ()) -> Any:
        """`update(problem, data, key, *rows, *shared)`, a method of this algorithm, for every client of the cohort.

        Or a function of `algorithms.parts` that takes the algorithm first. The algorithm itself travels with what is
        shared, so that its numbers stay data.
        """
        function = getattr(update, "__func__", update)

        def client(data, key, *args):
            *args, algorithm = args
            return function(algorithm, problem, data, key, *args)

        return problem.for_cohort(client, at, *rows, shared=(*shared, self))


@cache
def numbers_of(algorithm: type[Algorithm]) -> tuple[str, ...]:
    """The hyper-parameters that are data of a compiled round, unless None: those not "static" in their metadata."""
    hints = hints_of(algorithm)
    return tuple(
        field.name
        for field in fields(algorithm)
        if float in (hints[field.name], *get_args(hints[field.name])) or field.name.endswith("epochs")
        if not field.metadata.get("static")
    )


def _leaves(algorithm: Algorithm) -> list[str]:
    return [name for name in numbers_of(type(algorithm)) if getattr(algorithm, name) is not None]


@cache
def optimizers_of(algorithm: type[Algorithm]) -> tuple[str, ...]:
    """The fields that hold an optimiser: an object that no setting can name."""
    kind = optax.GradientTransformation
    return tuple(name for name, hint in hints_of(algorithm).items() if kind in (hint, *get_args(hint)))


def check_optimizers(algorithm: Algorithm) -> None:
    """Raise `InputError` for an optimiser that is none, and for numbers of the SGD that it replaces."""
    name = type(algorithm).__name__
    for each in optimizers_of(type(algorithm)):
        value = getattr(algorithm, each)
        if not isinstance(value, optax.GradientTransformation | None):
            raise InputError(
                f"{each} of {name} is {value!r} ({type(value).__name__}); give an optax.GradientTransformation, "
                "such as optax.adam(1e-3), or None"
            )
    if algorithm.optimizer is not None:
        for option in ("momentum", "weight_decay", "clip", "lr_decay"):
            if getattr(algorithm, option) is not None and getattr(type(algorithm), option) is None:
                raise InputError(
                    f"{option} of {name} belongs to SGD, which `optimizer` replaces; leave {option} out, or make it a "
                    "part of the optimiser by optax.chain"
                )


def _split(algorithm: Algorithm):
    """Leaves (in order) and structure (names and values of the rest), as a pytree node is taken apart."""
    leaves = _leaves(algorithm)
    rest = tuple((name, value) for name, value in vars(algorithm).items() if name not in leaves)
    return [getattr(algorithm, name) for name in leaves], (tuple(leaves), rest)


def _join(cls: type[Algorithm], structure, leaves) -> Algorithm:
    """The inverse; without __init__, whose checks are for numbers and not for tracers."""
    names, rest = structure
    algorithm = object.__new__(cls)
    vars(algorithm).update(rest, **dict(zip(names, leaves, strict=True)))
    return algorithm
