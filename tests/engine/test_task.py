"""Tasks: losses and metrics by hand, tasks of a user's own, and what is wrong with some."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import blobs

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.data import Federated
from fedlab_lite.engine import Problem, Task, train
from fedlab_lite.nn import Model
from fedlab_lite.util import InputError


class Linear(nnx.Module):
    """Features are x itself: with a linear head, linear regression."""

    def __init__(self, input_shape, *, rngs):
        self.features = input_shape[0]

    def __call__(self, x):
        return x


class Squares(Task):
    """Numbers to be fitted, `[B, 2]`."""

    headline = "distance"

    def row_loss(self, outputs, y):
        return jnp.sum(jnp.square(outputs - y), axis=-1) / 2

    def metrics(self, outputs, y):
        return {"distance": jnp.linalg.norm(outputs - y, axis=-1)}


def test_numbers_to_be_fitted_by_a_task_of_ones_own():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 8, 4)).astype(np.float32)
    held = (x, x @ rng.normal(size=(4, 2)).astype(np.float32), np.full(3, 8, np.int32))
    problem = Problem(
        Federated(*held, *held, x[:0, 0], "line", "made by a test", 2), Model.of(Linear, (4,), 2), task=Squares()
    )
    history, _ = train(problem, make_algorithm("fedavg", lr=0.1, epochs=5), num_rounds=12, eval_every=6)
    assert history.headline == "distance"
    assert history.metrics["loss"][0, -1] < 0.01 * history.metrics["loss"][0, 0]
    assert {"distance", "distance_pooled", "distance_gap"} <= history.metrics.keys()
    assert "accuracy" not in history.metrics
    np.testing.assert_allclose(history.client_curves.mean(-1), history.metrics["distance"], rtol=1e-5)


def test_a_task_of_ones_own():
    class Margin(Task):
        """Squared hinge of the right label's lead."""

        def __init__(self, margin):
            self.margin = margin

        def row_loss(self, outputs, y):
            right = jnp.take_along_axis(outputs, y[:, None], 1)[:, 0]
            others = jnp.where(jax.nn.one_hot(y, outputs.shape[1]) > 0, -jnp.inf, outputs).max(1)
            return jnp.square(jnp.maximum(0, self.margin - right + others))

    assert Margin(1.0) == Margin(1.0) != Margin(2.0)
    assert hash(Margin(1.0)) == hash(Margin(1.0))
    history, _ = train(
        replace(blobs(), task=Margin(1.0)), make_algorithm("fedavg", lr=0.02), num_rounds=4, eval_every=4
    )
    assert history.metrics["loss"][0, -1] < 0.7 * history.metrics["loss"][0, 0]
    assert history.metrics["accuracy"][0, -1] > history.metrics["accuracy"][0, 0]


class MeanLoss(Task):
    def row_loss(self, outputs, y):
        return super().row_loss(outputs, y).mean()


class MeanMetric(Task):
    def metrics(self, outputs, y):
        return {"accuracy": jnp.mean(outputs.argmax(-1) == y)}


class NoHeadline(Task):
    def metrics(self, outputs, y):
        return {"top_2": jnp.any(jax.lax.top_k(outputs, 2)[1] == y[:, None], axis=-1)}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            MeanLoss(),
            r"loss of task MeanLoss has shape \(\), and its `counted` \(\d+,\); give one value per label",
        ),
        (MeanMetric(), r"accuracy of task MeanMetric has shape \(\), and its `counted` \(\d+,\); give one value"),
        (NoHeadline(), r"unknown headline of task NoHeadline 'accuracy' \(known: loss, top_2\)"),
    ],
)
def test_tasks_that_cannot_be(task, message):
    with pytest.raises(InputError, match=message):
        train(replace(blobs(), task=task), make_algorithm("fedavg", lr=0.02), num_rounds=1)


def test_a_task_that_does_not_exist():
    with pytest.raises(InputError, match=r"task is the class MeanLoss; use an object: MeanLoss\(\)"):
        replace(blobs(), task=MeanLoss)


def test_a_loss_that_is_a_mean_already():
    """In a round, before anything is judged."""
    problem = replace(blobs(), task=MeanLoss())
    with pytest.raises(InputError, match="row_loss of task MeanLoss has shape"):
        problem.mean_loss(jnp.zeros((3, 4)), jnp.zeros(3, int), jnp.ones(3))
