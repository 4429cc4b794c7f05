"""Rounds in plain NumPy, float64: a small network, its slopes, and the batches that the keys of a round draw.

The network has the features theta * x (theta `[3]`) and the logits features @ w (w `[3, 3]`). Clients have unequal
numbers of rows and several batches per pass, so that the choice of rows, their order and their number show.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.data import Federated
from fedlab_lite.engine import Problem, make_graph

WIDTH, CLASSES, PADDED, BATCH = 3, 3, 6, 2
SIZES = (5, 3, 4)  # rows of the clients
_RNG = np.random.default_rng(7)
X = _RNG.normal(size=(3, PADDED, WIDTH))
Y = np.array([[0, 1, 2, 1, 0, 2], [1, 1, 0, 2, 2, 2], [2, 0, 2, 2, 1, 1]])  # client 1 has no row of class 2
THETA, W = _RNG.normal(size=WIDTH), _RNG.normal(size=(WIDTH, CLASSES))


@dataclass(frozen=True)
class Network:
    """The network as the package calls it."""

    name = "reference"
    constrained = False

    def init(self, key):
        return {"representation": {"theta": jnp.float32(THETA)}, "head": {"w": jnp.float32(W)}}

    def represent(self, params, x, *, key=None, budget=None):
        return params["representation"]["theta"] * x

    def classify(self, head, features, *, key=None):
        return features @ head["w"]

    def forward(self, params, x, *, key=None, z0=None, budget=None):
        return self.apply(params, x), None

    def apply(self, params, x):
        return self.classify(params["head"], self.represent(params, x))

    def equilibrium_shape(self):
        return None

    def project(self, representation):
        return representation


def reference_problem(clients=2, graph=None):
    """The first clients, on a graph of this kind."""
    size = np.int32(SIZES[:clients])
    x, y = np.where(np.arange(PADDED)[:, None] < size[:, None, None], X[:clients], 9), np.int32(Y[:clients])
    data = Federated(np.float32(x), y, size, np.float32(x), y, size, np.zeros((0, WIDTH), np.float32), "r", "test", 3)
    return Problem(data, Network(), "map", graph=make_graph(graph, clients) if graph else None)


# --- which rows -------------------------------------------------------------------------------------------------------


def order_of(key, size, rows=PADDED):
    """The places of a client's rows in random order."""
    draws = np.asarray(jax.random.uniform(key, (rows,)))
    return np.argsort(draws[:size], kind="stable")


def batches(key, size, *, epochs=None, steps=None, batch=BATCH):
    """The places and the key of each step of `local_train`."""
    found = []
    for index in range(steps if epochs is None else epochs):
        order_key, step_key = jax.random.split(jax.random.fold_in(key, index))
        order = order_of(order_key, size)
        if epochs is None:
            found.append((order[:batch], step_key))
        else:
            starts = range(0, size, batch)
            found += [(order[s : s + batch], jax.random.fold_in(step_key, i)) for i, s in enumerate(starts)]
    return found


# --- losses and steps -------------------------------------------------------------------------------------------------


def softmax(logits):
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def slopes(p, x, y, by_class=0.0):
    """The slopes of the mean cross-entropy by 'theta' and 'w'; `by_class` is added to the logits."""
    wrong = (softmax(p["theta"] * x @ p["w"] + by_class) - np.eye(CLASSES)[y]) / len(x)
    return {"theta": (x * (wrong @ p["w"].T)).sum(0), "w": (p["theta"] * x).T @ wrong}


def accuracy_loss(p, x, y):
    return -np.log(softmax(p["theta"] * x @ p["w"]))[np.arange(len(y)), y].mean()


def descend(p, parts, client, steps, lr, slope=slopes, momentum=0.0, weight_decay=0.0):
    """SGD on these parts of the params over the batches `steps` of a client's rows; `slope(p, x, y)`."""
    p, before = dict(p), dict.fromkeys(parts, 0.0)
    for places, _ in steps:
        found = slope(p, X[client, places], Y[client, places])
        for part in parts:
            before[part] = momentum * before[part] + found[part] + weight_decay * p[part]
            p[part] = p[part] - lr * before[part]
    return p


def rows(client):
    return X[client, : SIZES[client]], Y[client, : SIZES[client]]


def weighted(values, weights=SIZES):
    """The mean of the first clients' values by their numbers of rows, or by other weights."""
    return np.average(values, axis=0, weights=weights[: len(values)])
