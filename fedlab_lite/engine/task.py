"""Tasks: the loss of each label, which labels count, and the metrics that clients are judged by."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Shaped

from fedlab_lite.data import PAD
from fedlab_lite.util import InputError


class Task:
    """A task: the loss of each label, which labels count, and which metrics are reported. This class is classification.

    A new task is a subclass: `Problem(data, model, task=MyTask())`. Equal tasks share compiled programs.

    Example:
      >>> class Hinge(Task):  # of two classes, of which the second is 1
      ...     def row_loss(self, outputs, y):
      ...         return jnp.maximum(0, 1 - (2 * y - 1) * (outputs[:, 1] - outputs[:, 0]))
      >>> Hinge().row_loss(jnp.array([[0.0, 2.0], [0.0, 0.25]]), jnp.array([1, 1])).tolist()
      [0.0, 0.75]
    """

    headline = "accuracy"  # the metric whose value every client is judged by

    def row_loss(self, outputs: Float[Array, "B *labels C"], y: Int[Array, " B *labels"]) -> Float[Array, " B *labels"]:
        """The loss `[B, ...]` of every label, from `outputs [B, ..., C]` and `y [B, ...]`."""
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y)

    def counted(self, y: Shaped[Array, "B ..."], weight: Shaped[Array, " B"]) -> Shaped[Array, "B ..."]:
        """Which labels count, of the rows that `weight [B]` (1 or 0) counts: 1 or 0, shaped like `row_loss`."""
        return weight

    def metrics(
        self, outputs: Float[Array, "B *labels C"], y: Int[Array, " B *labels"]
    ) -> dict[str, Shaped[Array, " B *labels"]]:
        """The metrics besides the loss: name -> a value for every label, shaped like `row_loss`."""
        return {"accuracy": outputs.argmax(-1) == y}

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self):
        return hash(type(self))


class NextCharacter(Task):
    """Next-character prediction: a label for every character of a text `[B, T]`; padding does not count."""

    def counted(self, y: Int[Array, "B T"], weight: Shaped[Array, " B"]) -> Shaped[Array, "B T"]:
        return weight[:, None] * (y != PAD)


def check_labels(task: Task, what: str, values: Shaped[Array, "..."], counted: Shaped[Array, "..."]) -> None:
    """Raise `InputError` unless a task gives one value for each label that its `counted` speaks of."""
    if jnp.shape(values) != jnp.shape(counted):
        raise InputError(
            f"{what} of task {type(task).__name__} has shape {jnp.shape(values)}, and its `counted` "
            f"{jnp.shape(counted)}; give one value per label, without a mean over them"
        )


TASKS = {"classification": Task(), "next_character": NextCharacter()}
