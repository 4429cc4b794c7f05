"""The base class of all algorithms.

A new algorithm takes one file, one line in `algorithms/__init__.py` and a look; CONTRIBUTING.md has the steps.
"""

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
MOMENTS = ("mixed", "trained")  # of a round, at which a method is judged, see `Algorithm.moment`


@dataclass(frozen=True)
class Algorithm(ABC):
    """The base class of all algorithms, with the hyper-parameters that they share.

    Each subclass adds its own hyper-parameters and names the paper's symbols.

    An algorithm is a pytree. Its leaves are step sizes, penalties (all floats) and numbers of epochs. Everything else
    is its structure. So a compiled round takes the leaves as data, and one program serves a whole grid of them. Another
    integer or word needs another program. So does a number in place of None, or another optimiser. A field states its
    range by `ranged` and its words by `one_of`. A `__post_init__` may check numbers: it runs where a user makes an
    algorithm, and never in a compiled round.

    An optimiser is an object of optax. So it is an argument of the class, and not an option of `Settings`.

    The state is a dictionary. The entries that `owned` names belong to the clients. Their leaves are stacked over all
    clients on axis 0, and distributed over the devices.

    Example (one step of gradient descent on every client's whole data, averaged):
      >>> @dataclass(frozen=True)
      ... class FedSGD(Algorithm):
      ...     def init(self, problem, key):
      ...         return {"params": problem.model.init(key)}
      ...
      ...     def step(self, problem, data, key, params):
      ...         trained = self.train(problem.loss, params, data, key, steps=1)
      ...         return jax.tree.map(jax.numpy.subtract, trained, params)
      ...
      ...     def round(self, problem, state, at):
      ...         params = problem.downlink(state["params"])
      ...         changes = self.for_cohort(problem, self.step, at, shared=(params,))
      ...         return {"params": jax.tree.map(jax.numpy.add, params, problem.uplink(at, changes))}
      ...
      ...     def models(self, problem, state, key):
      ...         return {}, state["params"]
      >>> FedSGD(lr=0.1, batch_size=1000).step_sizes
      ('lr',)
    """

    lr: float = ranged(0.01, 0, above=True)  # eta, step size of local training by SGD
    batch_size: int = ranged(10, 1)  # rows per local step
    momentum: float | None = ranged(None, 0)  # heavy ball: factor on the previous step; it starts at zero in each round
    weight_decay: float | None = ranged(None, 0)  # this times the params is added to the gradient
    clip: float | None = ranged(None, 0, above=True)  # a longer gradient (L2 norm, all params) is scaled to this
    lr_decay: float | None = ranged(None, 0, 1)  # factor on the step sizes per round
    join_epochs: int = ranged(3, 0)  # passes over a newcomer's rows before it is judged (FeDEQ, Sec. V-B5)
    optimizer: optax.GradientTransformation | None = None  # used for all local training, in place of SGD

    version: ClassVar[int] = 2  # of its numerics: part of every run's name
    join_version: ClassVar[int] = 1  # of its newcomers' numerics: part of the names of runs with newcomers
    needs_all_clients: ClassVar[bool] = False  # in each round
    has_server: ClassVar[bool] = True  # and so no use for a graph, which settings refuse
    owned: ClassVar[tuple[str, ...]] = ()  # entries of the state that belong to the clients
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)  # what `lr_decay` applies to

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node(cls, _split, partial(_join, cls))

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Refuse unknown names with `InputError`; the dataclass's own `__init__` would raise a `TypeError`."""
        for name in named:
            choose(f"hyper-parameter of {cls.__name__}", name, hints_of(cls))
        return super().__new__(cls)

    def __post_init__(self):
        """Check each value against the type and range of its field.

        A subclass with further checks calls this as well.
        """
        check_optimizers(self)
        check_fields(self, type(self).__name__, known=lambda value: not isinstance(value, jax.Array))

    @abstractmethod
    def init(self, problem: Problem, key: jax.Array) -> dict:
        """The state before the first round."""

    @abstractmethod
    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        """Run one communication round with the clients `at.cohort`; a pure function that `jit` can compile."""

    @abstractmethod
    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        """The models that the clients are judged with: `shared | own_i` for client i.

        Returns: the parts `own`, stacked over clients, and the parts `shared` by all.
        """

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """Further models to judge, by name, each like `models`."""
        return {}

    @property
    def moment(self) -> str:
        """The moment of a round at which `models` are judged: 'mixed' with other clients', or 'trained' locally.

        `other_models` has the models of the other moment under its name. '': clients are judged at one moment only.
        """
        return ""

    def predictor(self) -> Callable | None:
        """The object that answers in place of the models of `models`; None: they answer by themselves.

        It is a pytree, called as `engine.evaluate` says.
        """
        return

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The models of clients that took no part in training, after adapting to their rows `problem.data`.

        Returns: models by judgement, each like `models`; '' is the headline.
        """
        raise InputError(f"{type(self).__name__} does not define how newcomers join; add a method `join`")

    def check(self, problem: Problem) -> None:
        """Raise `InputError` if these hyper-parameters do not fit this problem."""
        return

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """Further curves to report, such as residuals and Lagrangians.

        Each is a number, or `[clients]`, of which the mean is reported.
        """
        return {}

    def client_optimizer(self, lr: jax.Array | float | None = None) -> optax.GradientTransformation:
        """The optimiser of a client's local training.

        It is `optimizer`, or else SGD at `lr` (None: this algorithm's) with momentum, weight decay and clipping where
        they are set.
        """
        if self.optimizer is not None:
            return self.optimizer
        clip = [] if self.clip is None else [optax.clip_by_global_norm(self.clip)]
        decay = [] if self.weight_decay is None else [optax.add_decayed_weights(self.weight_decay)]
        return optax.chain(*clip, *decay, optax.sgd(self.lr if lr is None else lr, momentum=self.momentum))

    def train(self, loss: Callable, params: Any, data: ClientData, key: jax.Array, **options: Any) -> Any:
        """`engine.local_train` with this algorithm's optimiser and batch size."""
        return local_train(loss, params, data, key, self.client_optimizer(), batch_size=self.batch_size, **options)

    def with_values(self, **changes: Any) -> Self:
        """A copy of this algorithm with other values of some hyper-parameters; it works in a compiled round as well.

        `dataclasses.replace` would run `__post_init__`, whose checks are for numbers and not for tracers.
        """
        for name in changes:
            choose(f"hyper-parameter of {type(self).__name__}", name, hints_of(type(self)))
        return _unchecked(type(self), vars(self) | changes)

    def of_round(self, index: jax.Array) -> "Algorithm":
        """This algorithm for round `index`, with its step sizes decayed by `lr_decay`."""
        if self.lr_decay is None:
            return self
        steps = {name: getattr(self, name) for name in self.step_sizes}
        return self.with_values(**{name: lr * self.lr_decay**index for name, lr in steps.items() if lr is not None})

    def for_cohort(self, problem: Problem, update: Callable, at: RoundContext, *rows: Any, shared: tuple = ()) -> Any:
        """Apply `update(problem, data, key, *rows, *shared)` to every client of the cohort.

        `update` is a method of this algorithm, or a function of `algorithms.parts` that takes the algorithm first. The
        algorithm is passed along with `shared`, so that its numbers stay data.
        """
        function = getattr(update, "__func__", update)

        def client(data, key, *args):
            return function(args[-1], problem, data, key, *args[:-1])

        return problem.for_cohort(client, at, *rows, shared=(*shared, self))


@cache
def numbers_of(algorithm: type[Algorithm]) -> tuple[str, ...]:
    """The names of the hyper-parameters that are data of a compiled round, unless they are None.

    Fields marked "static" in their metadata are left out.
    """
    hints = hints_of(algorithm)
    return tuple(
        field.name
        for field in fields(algorithm)
        if float in (hints[field.name], *get_args(hints[field.name])) or field.name.endswith("epochs")
        if not field.metadata.get("static")
    )


@cache
def optimizers_of(algorithm: type[Algorithm]) -> tuple[str, ...]:
    """The names of the fields that hold an optimiser, which no setting can name."""
    kind = optax.GradientTransformation
    return tuple(name for name, hint in hints_of(algorithm).items() if kind in (hint, *get_args(hint)))


def check_optimizers(algorithm: Algorithm) -> None:
    """Raise `InputError` for an invalid optimiser, or for options of the SGD that it replaces."""
    name = type(algorithm).__name__
    for each in optimizers_of(type(algorithm)):
        value = getattr(algorithm, each)
        if not isinstance(value, optax.GradientTransformation | None):
            raise InputError(
                f"{each} of {name} is {value!r} ({type(value).__name__}); use None, or one such as optax.adam(1e-3)"
            )
    if algorithm.optimizer is not None:
        for option in ("momentum", "weight_decay", "clip", "lr_decay"):
            if getattr(algorithm, option) is not None and getattr(type(algorithm), option) is None:
                raise InputError(
                    f"{option} of {name} belongs to SGD, which `optimizer` replaces; leave it out or use optax.chain"
                )


def _split(algorithm: Algorithm):
    """Split an algorithm, as a pytree node, into its leaves and its structure (names and values of the rest)."""
    leaves = [name for name in numbers_of(type(algorithm)) if getattr(algorithm, name) is not None]
    rest = tuple((name, value) for name, value in vars(algorithm).items() if name not in leaves)
    return [getattr(algorithm, name) for name in leaves], (tuple(leaves), rest)


def _join(cls: type[Algorithm], structure, leaves) -> Algorithm:
    names, rest = structure
    return _unchecked(cls, dict(rest) | dict(zip(names, leaves, strict=True)))


def _unchecked(cls: type[Algorithm], values: dict[str, Any]) -> Any:
    """An algorithm of these values, made without `__init__`, whose checks are for numbers and not for tracers."""
    algorithm = object.__new__(cls)
    vars(algorithm).update(values)
    return algorithm
