"""The equilibrium layers inside a model, in the form that `deq.report` and `deq.equilibrium` take."""

from typing import Any

import jax

from fedlab_lite.nn.model import Model
from fedlab_lite.util import InputError


def equilibrium_layers(model: Model, params: dict, x: jax.Array) -> list[tuple[Any, Any, jax.Array]]:
    """Return `(cell, params, u)` of each equilibrium layer of a model, in order, for the rows `x [B, *input_shape]`.

    The layer's equilibrium is z = cell(params, u, z). The model's own solver starts at z = u.

    Raises:
      InputError: a model without an equilibrium layer.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedlab_lite.nn import make_model
      >>> model = make_model("deq_mlp", (8, 8, 1), 10, width=16)
      >>> params = model.init(jax.random.key(0))
      >>> [(cell, params, u)] = equilibrium_layers(model, params, jnp.ones((2, 8, 8, 1)))
      >>> cell.__name__, params["B"].shape, u.shape
      ('dense_cell', (16, 16), (2, 16))
    """
    solver = model.solve
    if solver is None:
        raise InputError(f"{model.name} has no equilibrium layer")
    cells = []

    @jax.jit
    def arrays(params, x):
        module, found = model.representation_module(params["representation"], x), []

        def solve(cell, params, u, *rest, **options):
            cells.append(cell)
            found.append((params, u))
            return solver(cell, params, u, *rest, **options)

        module.solve = solve
        module(x)
        return found

    return [(cell, *found) for found, cell in zip(arrays(params, x), cells, strict=True)]
