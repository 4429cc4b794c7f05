"""Similarity of two networks' layers on the same rows: linear CKA (Kornblith et al. 2019, arXiv:1905.00414)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fedlab_lite.data import Federated
from fedlab_lite.nn import Model
from fedlab_lite.util import InputError


def _centred_gram(x: Shaped[Array, "n ..."]) -> Float[Array, "n n"]:
    """The Gram matrix X X^T of centred columns, scaled to Frobenius norm 1; nan if all rows are equal."""
    flat = x.reshape(x.shape[0], -1).astype(jnp.float32)
    flat = flat - flat.mean(0)
    flat = flat / jnp.linalg.norm(flat)  # so that fourth powers neither overflow nor underflow
    gram = jnp.matmul(flat, flat.T, precision=jax.lax.Precision.HIGHEST)
    return gram / jnp.linalg.norm(gram)


@jax.jit
def linear_cka(x: Shaped[Array, "n ..."], y: Shaped[Array, "n ..."]) -> Float[Array, ""]:
    """The linear CKA of two representations of the same rows, between 0 and 1.

    It is ||Y^T X||^2 / (||X^T X|| ||Y^T Y||) of centred columns, with Frobenius norms (the paper's eq. (5)). It is 1 if
    the representations differ only by a rotation, a scale and a shift.

    Args:
      x, y: two representations of the same n rows, `[n, ...]`, flattened to `[n, p]` and `[n, q]`; p may differ from
        q. The code computes the equal inner product of the two `[n, n]` Gram matrices, so memory grows with n^2.

    Returns: a number; nan if one of the two has the same values in every row.

    Example:
      >>> x = jax.random.normal(jax.random.key(0), (20, 5))
      >>> round(float(linear_cka(x, 3 * x[:, ::-1] + 1)), 5)
      1.0
    """
    if x.shape[0] != y.shape[0]:
        raise InputError(f"CKA compares the same rows, but x has {x.shape[0]} rows and y has {y.shape[0]}")
    return jnp.sum(_centred_gram(x) * _centred_gram(y))


@partial(jax.jit, static_argnums=0)
def _similarity(model: Model, clients: dict, server: dict, x: jax.Array) -> list[jax.Array]:
    theirs = {name: _centred_gram(layer) for name, layer in model.activations(server, x).items()}

    def of_client(params: dict) -> list[jax.Array]:
        own = model.activations(params, x)
        return [jnp.sum(_centred_gram(layer) * theirs[name]) for name, layer in own.items() if name in theirs]

    return jax.lax.map(of_client, clients)


def layer_similarity(model: Model, clients: dict, server: dict, x: Shaped[Array, "n ..."]) -> dict[str, np.ndarray]:
    """Linear CKA between each client's layers and the server's, on the rows `x [n, *input_shape]`; FedReCo's Fig. 2.

    Clients are processed one after the other. So memory holds the layers of two networks on all n rows at a time.

    Args:
      clients: parameters with leaves `[clients, ...]`.
      server: parameters; if they have no head ({'representation': ...}), only the layers below the head are compared.

    Returns: layer -> `[clients]`, in the order of the network, see `Model.activations`. Raises `InputError`.

    Example:
      >>> from fedlab_lite.nn import make_model
      >>> model = make_model("mlp", (4,), 3, width=8, depth=1, features=0)
      >>> server = model.init(jax.random.key(0))
      >>> two = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), server)
      >>> found = layer_similarity(model, two, server, jax.random.normal(jax.random.key(1), (10, 4)))
      >>> {name: values.round(3).tolist() for name, values in found.items()}
      {'dense1': [1.0, 1.0], 'head': [1.0, 1.0]}
    """
    names = [name for name in jax.eval_shape(model.activations, server, x) if name != "head" or "head" in clients]
    values = _similarity(model, clients, server, jnp.asarray(x))
    return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}


def common_rows(data: Federated, per_client: int) -> np.ndarray:
    """The first `per_client` test rows of each client, pooled: `[clients * per_client, ...]`.

    Each client has the same weight. Raises `InputError` if a client has fewer rows.

    Example:
      >>> from fedlab_lite.data import federated
      >>> common_rows(federated("digits", partition="iid", num_clients=4, train_size=40, test_size=20), 2).shape
      (8, 28, 28, 1)
    """
    fewest = int(np.min(np.asarray(data.test_size)))
    if not 1 <= per_client <= fewest:
        raise InputError(f"per_client is {per_client}; choose 1 to {fewest}, the test rows of the smallest client")
    x = np.asarray(data.test_x[:, :per_client])
    return x.reshape(-1, *x.shape[2:])
