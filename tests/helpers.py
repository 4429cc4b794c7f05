"""A problem small enough to compute by hand: two clients, one-dimensional quadratics."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.clients import Problem
from fedlab_lite.data.federated import Federated
from fedlab_lite.graphs import make_graph
from fedlab_lite.nn.model import make_model


@dataclass(frozen=True)
class ScalarModel:
    """theta scales the first entry of x, w the second: 'logit' = theta x_0 + w x_1. No projection."""

    theta: float = 0.0
    w: float = 0.0

    def init(self, key):
        return {"representation": {"theta": jnp.float32(self.theta)}, "head": {"w": jnp.float32(self.w)}}

    def represent(self, params, x, *, budget=None):
        return jnp.stack([params["representation"]["theta"] * x[:, 0], x[:, 1]], axis=1)

    def classify(self, head, features, *, key=None):
        return features[:, 0] + head["w"] * features[:, 1]

    def forward(self, params, x, *, key=None, z0=None, budget=None):
        return self.apply(params, x), None

    def equilibrium_shape(self):
        return None

    def apply(self, params, x):
        return self.classify(params["head"], self.represent(params, x))

    def project(self, representation):
        return representation


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuadraticProblem(Problem):
    """Loss of a row: (logit - y)^2 / 2, so a client with rows x = (1, 1) pulls theta + w to its mean y."""

    model: ScalarModel = field(metadata={"static": True})

    def row_loss(self, logits, y):
        return (logits - y) ** 2 / 2


def quadratic_problem(targets, sizes, *, theta=0.0, w=0.0, executor="map"):
    """Client i has `sizes[i]` rows, all x = (1, 1), all y = `targets[i]`."""
    n, rows = len(targets), max(sizes)
    y = np.zeros((n, rows), np.float32)
    x = np.zeros((n, rows, 2), np.float32)
    for i, (target, size) in enumerate(zip(targets, sizes, strict=True)):
        x[i, :size], y[i, :size] = 1.0, target
    size = np.array(sizes, np.int32)
    data = Federated(x, y, size, x, y, size, np.zeros((0, 2), np.float32), "quadratic", "made by a test", 2)
    return QuadraticProblem(data, ScalarModel(theta, w), executor)


def blobs(num_clients=5, classes=3, seed=0, sizes=None, shape=(6,), model="mlp", executor="map", **options):
    """Ragged clients of Gaussian classes in a few dimensions, and a small model on them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, *shape)) * 2
    sizes = sizes or rng.integers(7, 30, num_clients)

    def draw(size):
        y = rng.integers(0, classes, size)
        return (centres[y] + rng.normal(size=(size, *shape))).astype(np.float32), y

    train, test = [draw(n) for n in sizes], [draw(12) for _ in sizes]
    data = Federated.stack(train, test, name="blobs", source="made by a test", num_classes=classes)
    options = options or {"width": 16, "depth": 1, "features": 8}
    data = replace(data, shared_x=draw(24)[0])
    graph = make_graph("ring", len(sizes)) if len(sizes) > 1 else None
    return Problem(data, make_model(model, shape, classes, **options), executor, graph=graph)
