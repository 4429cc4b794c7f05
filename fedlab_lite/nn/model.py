"""`Model`: a representation and a head, built from Flax NNX modules, with parameters as dictionaries of arrays.

Personalisation is a dictionary access: `params["representation"]` is shared, `params["head"]` belongs to one client.
This is the only file that splits and merges NNX modules. All other files see pytrees and pure functions.

A representation must be a Flax NNX module class, from the register or from a notebook cell, of this form:

    __init__(self, input_shape, *, rngs, ...)  and its options, each with a default and a type that may say a range, as
                                               `Annotated[int, Range(1)]` does; it may also ask, by these names,
                                               for `num_classes`, and for `solve: Solve` if it finds an equilibrium
    features: int                              the length of what it gives, for a linear head;
    make_head(self, num_classes, *, rngs)      or, in its place, the module that is its head
    __call__(self, x, ...)                     features `[B, ...]` of `x [B, *input_shape]`; it may ask, by these names,
                                               for `key` (dropout, regulariser), `z0` and `budget`; one that asks
                                               for z0 is an equilibrium and returns (features, Solution)
    activations(self, x)                       where there is one: each layer's output by name, `[B, ...]`, in order,
                                               the last what `__call__` gives; see `Model.activations`
    project(self)                              where there is one: moves its params into a constraint set
    version = 1                                where there is one: part of the names of its stored runs

A head's `__call__(features, ...)` may ask for `key`.
"""

import inspect
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.deq import Solution
from fedlab_lite.nn.equilibrium_nets import Solve
from fedlab_lite.nn.form import SOLVE, arguments, check_form, check_state
from fedlab_lite.nn.layers import MaybeArray
from fedlab_lite.util import InputError


def _text_keys(tree):
    return {str(k): _text_keys(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


class _Parts(NamedTuple):
    representation: nnx.GraphDef
    head: nnx.GraphDef


@dataclass(frozen=True)
class Model:
    """An architecture for one input shape and number of classes; hashable, so it can be a static argument of `jit`.

    `make_model` makes one from the register, `Model.of` from any module class of the form above.

    Example:
      >>> from fedlab_lite.nn import make_model
      >>> model = make_model("mlp", (28, 28, 1), 62)
      >>> params = model.init(jax.random.key(0))
      >>> sorted(params), count_params(params)
      (['head', 'representation'], 1263550)
      >>> model.apply(params, jax.numpy.zeros((2, 28, 28, 1))).shape
      (2, 62)
    """

    name: str
    module: type[nnx.Module]
    input_shape: tuple[int, ...]
    num_classes: int
    options: tuple[tuple[str, object], ...] = ()

    @classmethod
    def of(
        cls,
        module: type[nnx.Module],
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        name: str | None = None,
        **options: Any,
    ) -> "Model":
        """Make the model whose representation is an instance of `module`, a class of the form above.

        Raises `InputError` for a class of another form, naming what is missing. Raises it also for unknown options,
        and where input, representation and head do not fit together.
        """
        name = name or getattr(module, "__name__", str(module))
        options = check_form(module, name, options)
        model = cls(name, module, tuple(int(n) for n in input_shape), int(num_classes), tuple(sorted(options.items())))
        try:
            _parts(model)
            _outputs(model)
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
            raise InputError(f"model {name!r} fails for inputs {tuple(input_shape)}, {options}: {error}") from error
        return model

    @property
    def solve(self) -> Solve | None:
        """The solver settings of its equilibrium; None for a model without one."""
        if "solve" not in arguments(self.module):
            return None
        return Solve(**{option: value for option, value in self.options if option in SOLVE})

    @property
    def regularised(self) -> bool:
        """Whether its loss in training has a term of its own, `Solution.penalty`."""
        return self.solve is not None and self.solve.regulariser > 0

    def _modules(self, key: jax.Array, **others: jax.Array) -> tuple[nnx.Module, nnx.Module]:
        rngs = nnx.Rngs(params=key, **others)
        options = {option: value for option, value in self.options if option not in SOLVE}
        given = {"solve": self.solve, "num_classes": self.num_classes}
        options |= {option: value for option, value in given.items() if option in arguments(self.module)}
        representation = self.module(self.input_shape, rngs=rngs, **options)
        if hasattr(representation, "make_head"):
            return representation, representation.make_head(self.num_classes, rngs=rngs)
        if not hasattr(representation, "features"):
            raise InputError(
                f"an instance of {self.name} has neither `make_head` nor `features`, the length of its output; set one"
            )
        return representation, nnx.Linear(representation.features, self.num_classes, rngs=rngs)

    @property
    def per_position(self) -> bool:
        """Whether it predicts at every position of a sequence, not once per row."""
        return _outputs(self)[0].ndim > 2

    @property
    def constrained(self) -> bool:
        """Whether its params must stay in a constraint set, see `project`."""
        return hasattr(self.module, "project")

    @partial(jax.jit, static_argnums=0)
    def init(self, key: jax.Array) -> dict:
        """Draw random parameters {'representation': tree, 'head': tree}; a projected layer starts inside its ball.

        They are drawn by XLA's own generator ("rbg"). It compiles five times as fast as JAX's default, which makes a
        program for every shape. Its state is twice as long as a key, so the key is used twice. Under `vmap` it would
        give all keys one stream, so the keys are used one after the other there.
        """

        @jax.custom_batching.sequential_vmap
        def draw(seed):
            key = jax.random.wrap_key_data(jnp.concatenate([seed, seed]), impl="rbg")
            return [_text_keys(nnx.to_pure_dict(nnx.state(part, nnx.Param))) for part in self._modules(key)]

        representation, head = draw(jax.random.key_data(key))
        return {"representation": self.project(representation), "head": head}

    def forward(
        self, params: dict, x: jax.Array, *, key: MaybeArray = None, z0: MaybeArray = None, budget: MaybeArray = None
    ) -> tuple[jax.Array, Solution | None]:
        """Return logits `[B, ..., num_classes]` of `x [B, *input_shape]`, and the solver's `Solution` or None.

        Args:
          key: draws the dropout masks and the regulariser's probe, in training; None, as in evaluation: neither.
          z0: `[B, *equilibrium_shape()]`, where the equilibrium's solver starts: `solution.z` of a row's last visit,
            zeros for a row without one. The solver then takes at most `warm_iter` steps. None: no row had a visit.
          budget: solver iterations that this device can afford, forward and backward, 1 to `max_iter`. A number, which
            is data of a compiled program. None: `max_iter`.

        A model ignores those of the three that it does not use. Raises `InputError` for `x` or `z0` of another shape.
        """
        key, head_key = (None, None) if key is None else jax.random.split(key)
        features, solution = self._features(params["representation"], x, key=key, z0=z0, budget=budget)
        return self.classify(params["head"], features, key=head_key), solution

    def apply(self, params: dict, x: jax.Array) -> jax.Array:
        """Return the logits `[B, ..., num_classes]` of `x [B, *input_shape]`."""
        return self.forward(params, x)[0]

    def represent(self, params: dict, x: jax.Array, *, key: MaybeArray = None, budget: MaybeArray = None) -> Any:
        """Return the head's input: `[B, features]` or a pytree of `[B, ...]` leaves; for `key` see `forward`.

        Raises `InputError` for a key if the layer has a regulariser, as a loss of features alone would leave it out.
        """
        if key is not None and self.regularised:
            raise InputError(
                f"this algorithm trains on the features of {self.name}, which leaves out its regulariser; set "
                "regulariser=0, or use another algorithm, such as fedavg or fedeq"
            )
        return self._features(params["representation"], x, key=key, budget=budget)[0]

    def classify(self, head: dict, features: Any, *, key: MaybeArray = None) -> jax.Array:
        """Return the logits of `features` by the head alone; for `key` see `forward`."""
        return _call(_merge(_parts(self).head, head), features, key=key)

    def activations(self, params: dict, x: jax.Array) -> "OrderedDict[str, jax.Array]":
        """Return the output `[B, ...]` of every layer for `x [B, *input_shape]`, by name, in order, without dropout.

        The last, 'head', is the logits; it is left out where `params` has no head. `forward` computes the same and
        stores none of it. The result is an `OrderedDict`, because JAX would sort a plain dictionary. Raises
        `InputError` for a model whose class has no `activations`.

        Example:
          >>> from fedlab_lite.nn import make_model
          >>> model = make_model("cnn5", (28, 28, 1), 10, features=32)
          >>> found = model.activations(model.init(jax.random.key(0)), jnp.zeros((2, 28, 28, 1)))
          >>> {name: layer.shape[1:] for name, layer in found.items()}
          {'conv1': (12, 12, 4), 'conv2': (4, 4, 12), 'dense1': (32,), 'dense2': (32,), 'head': (10,)}
        """
        if not hasattr(self.module, "activations"):
            raise InputError(
                f"{self.name} does not return its layers' outputs; add a method `activations(self, x)` to "
                f"{self.module.__name__}, as the docstring of `fedlab_lite.nn.model` describes"
            )
        found = OrderedDict(self.representation_module(params["representation"], x).activations(x))
        if "head" in params:
            found["head"] = self.classify(params["head"], next(reversed(found.values())))
        return found

    def equilibrium_shape(self) -> tuple[int, ...] | None:
        """The shape of the equilibrium z of one row; None for a model without one.

        >>> from fedlab_lite.nn import make_model
        >>> make_model("deq_mlp", (28, 28, 1), 62).equilibrium_shape()
        (512,)
        """
        solution = _outputs(self)[1]
        return solution and solution.z.shape[1:]

    def project(self, representation: dict) -> dict:
        """The nearest representation that meets the constraint of eq. (4); unchanged for a model without one."""
        if not self.constrained:
            return representation
        module = _merge(_parts(self).representation, representation)
        module.project()
        return _text_keys(nnx.to_pure_dict(nnx.state(module, nnx.Param)))

    def representation_module(self, representation: dict, x: jax.Array) -> nnx.Module:
        """The representation as a module with these params; `InputError` for an x of another input shape."""
        if x.shape[1:] != self.input_shape:
            raise InputError(
                f"{self.name} was made for inputs {self.input_shape}, got {x.shape[1:]}; pass the data's `input_shape`"
            )
        return _merge(_parts(self).representation, representation)

    def _features(self, representation: dict, x: jax.Array, **options) -> tuple[Any, Solution | None]:
        module = self.representation_module(representation, x)
        result = _call(module, x, **options)
        return result if "z0" in _call_names(type(module)) else (result, None)


@lru_cache
def _call_names(module: type[nnx.Module]) -> set[str]:
    return set(inspect.signature(module.__call__).parameters)


def _call(module: nnx.Module, inputs: Any, **options) -> Any:
    """Call module(inputs) with those options that it takes: `key` for dropout, the others for an equilibrium."""
    names = _call_names(type(module))
    return module(inputs, **{name: value for name, value in options.items() if name in names})


def _merge(graph: nnx.GraphDef, params: dict) -> nnx.Module:
    return nnx.merge(graph, nnx.restore_int_paths(params))


@lru_cache(maxsize=128)
def _parts(model: Model) -> _Parts:
    key = jax.random.key(0)
    modules = nnx.eval_shape(lambda: model._modules(key, default=key))  # `default`: so the check below is reached
    for module in modules:
        check_state(module, model.name)
    return _Parts(*(nnx.split(module)[0] for module in modules))


@lru_cache(maxsize=128)
def _outputs(model: Model) -> tuple[jax.ShapeDtypeStruct, Solution | None]:
    """The shapes of the results of `forward` for one row.

    Raises `InputError` where input, representation and head do not fit together.
    """
    params = jax.eval_shape(model.init, jax.random.key(0))
    row = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.uint8)  # pixels, or token ids
    features, solution = jax.eval_shape(model._features, params["representation"], row)
    try:
        logits = jax.eval_shape(model.classify, params["head"], features)
    except (TypeError, ValueError) as error:
        shapes = jax.tree.map(lambda leaf: leaf.shape, features)
        raise InputError(
            f"the representation of {model.name!r} gives features {shapes} for a row, which its head rejects: {error}"
        ) from error
    return logits, solution


def count_params(params) -> int:
    """The number of scalars in a pytree of parameters (arrays or their shapes).

    >>> count_params({"a": jax.numpy.zeros((2, 3)), "b": jax.numpy.zeros(4)})
    10
    """
    return sum(leaf.size for leaf in jax.tree.leaves(params))
