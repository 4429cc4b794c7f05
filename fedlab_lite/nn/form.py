"""Checks that a module class has the form that `fedlab_lite.nn.model` requires, and the options of such a class."""

import inspect
from functools import lru_cache
from typing import Any

from flax import nnx

from fedlab_lite.nn.equilibrium_nets import Solve
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Allowed, checked, parameters_of, rules_of

SOLVE = rules_of(Solve)
_NOT_OPTIONS = {"self", "input_shape", "num_classes", "rngs", "solve"}


@lru_cache
def arguments(module: type[nnx.Module]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(module.__init__).parameters)


def options_of(module: type[nnx.Module]) -> dict[str, Allowed]:
    """The options of a module, and what each may be, as the annotations of its `__init__` say."""
    takes = parameters_of(module.__init__)
    own = {name: allowed for name, allowed in takes.items() if name not in _NOT_OPTIONS}
    return own | (SOLVE if "solve" in takes else {})


def check_state(module: nnx.Module, name: str) -> None:
    """Raise `InputError` if a module keeps any state other than parameters."""
    for path, part in (*nnx.iter_modules(module), *nnx.to_flat_state(nnx.state(module))):
        kind = type(part) if isinstance(part, nnx.Module) else part.type
        if issubclass(kind, nnx.Dropout | nnx.BatchNorm) or not issubclass(kind, nnx.Module | nnx.Param):
            where = ".".join(map(str, ("self", *path)))
            raise InputError(
                f"{name} keeps a {kind.__name__}, {where}, but a model may keep only parameters (nnx.Param); "
                "in place of nnx.Dropout use fedlab_lite.nn.layers.dropout, of nnx.BatchNorm use GroupNorm or LayerNorm"
            )


def check_form(module: type, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options in their normal form. Raises `InputError` for a wrong form of the class, or wrong options."""
    if not (isinstance(module, type) and issubclass(module, nnx.Module)):
        raise InputError(f"{name} is not a class of Flax NNX modules; derive it from nnx.Module and pass the class")
    takes = arguments(module)
    missing = [f"`{argument}` in __init__" for argument in ("input_shape", "rngs") if argument not in takes]
    if not any("__call__" in vars(base) for base in module.__mro__):
        missing.append("`__call__`")
    if missing:
        raise InputError(f"{name} lacks {' and '.join(missing)}; see the docstring of fedlab_lite.nn.model")
    options = checked(f"model {name}", options, options_of(module))
    empty = inspect.Parameter.empty
    needed = [o for o in takes if o not in _NOT_OPTIONS and takes[o].default is empty and o not in options]
    if needed:
        raise InputError(f"{name} needs a value for {', '.join(needed)}; pass it, or set a default in __init__")
    return options
