"""Tools that the lessons of the course share: exercises with checkers, predictions, a slider, and toy problems.

An exercise has two parts: a checker, which is a function that raises `Wrong`, and wrong answers that readers typically
give. Each wrong answer is tried when the exercise is made, and the checker must reject it. A checker that accepts a
wrong answer is an error, both in a notebook and in CI. Its key is a hint: `compare` gives it to a reader whose function
returns the same. A reader's function gets copies of its arguments, and may not change them.

>>> @exercise(wrong={"did you weigh by size?": lambda models, sizes: sum(models) / len(models)})
... def check_average(average):
...     compare(average, lambda models, sizes: sum(m * n for m, n in zip(models, sizes)) / 4, ([0.0, 4.0], [1, 3]))
>>> def average(models, sizes):
...     return sum(models) / len(models)
>>> check_average(average)
✗ not yet: average([0, 4], [1, 3]) is 2, not 3: did you weigh by size?
>>> check_average(lambda models, sizes: None)
✗ not yet: you returned nothing: does your function end with `return`?
>>> check_average(lambda models, sizes: ...)
· no answer yet
>>> check_average.solution(lambda models, sizes: sum(m * n for m, n in zip(models, sizes)) / sum(sizes))
✓ the solution is right
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedlab_lite.data import Federated
from fedlab_lite.engine import Algorithm, Problem, Task
from fedlab_lite.nn import Model
from fedlab_lite.papers.answers import (
    Answer,
    Unanswered,
    Wrong,
    answered,
    called,
    copied,
    difference,
    numbers,
    parts,
    shown,
)
from fedlab_lite.util import progress
from fedlab_lite.util.fields import Range

__all__ = ["after_rounds", "compare", "exercise", "expect", "numbers", "parts", "predicted", "same", "slide", "toy"]


def expect(right: Any, otherwise: str) -> None:
    """Raise `Wrong` with the words `otherwise` unless `right` is true (an array: everywhere)."""
    if not getattr(right, "all", lambda: right)():
        raise Wrong(otherwise)


def same(found: Any, expected: Any, wrong: Mapping[str, Any], close: float = 1e-5) -> None:
    """Raise `Wrong` unless a value is the expected one; if it is a wrong one that is known, add its key as a hint."""
    if gap := difference(found, expected, "your answer", close):
        hints = [f": {hint}" for hint, value in wrong.items() if difference(found, value, "", close) is None]
        raise Wrong(gap + "".join(hints[:1]))


def compare(
    answer: Answer,
    right: Callable | Sequence[Callable],
    *cases: Any,
    close: float = 1e-5,
    up_to: Callable[[Any], Any] | None = None,
) -> None:
    """Raise `Wrong` unless an answer returns what a right function returns, in all cases.

    If it returns what a wrong answer of the exercise returns, the message ends with the key of that one.

    Args:
      right: the right function; of several, one has to agree in each case.
      cases: the arguments of a call, as a tuple; a single argument may stand alone.
      close: the largest difference, relative and absolute.
      up_to: what is compared of the returned numbers, such as their differences from their mean.
    """
    rights = [right] if callable(right) else list(right)
    for number, case in enumerate((each if isinstance(each, tuple) else (each,) for each in cases), 1):
        call = called(answer.name, case, number)
        found = answer(*case)
        found = up_to(numbers(found, call, None)) if up_to else found

        def gap(function: Callable, case: tuple = case, found: Any = found, call: str = call) -> str | None:
            expected = function(*copied(case))
            return difference(found, up_to(expected) if up_to else expected, call, close)

        def gives(wrong: Callable, gap: Callable = gap) -> bool:
            with suppress(Exception):  # a wrong answer may raise
                return gap(wrong) is None
            return False

        gaps = [gap(function) for function in rights]
        if all(gaps):
            hints = [f": {hint}" for hint, wrong in answer.wrong.items() if gives(wrong)]
            raise Wrong(f"{gaps[0]}{''.join(hints[:1])}")


class Exercise:
    """A checker that is called with an answer (a value or a function) and prints whether it is right."""

    def __init__(self, check: Callable[[Any], None], wrong: Mapping[str, Any]):
        self.check = check
        self.wrong = wrong
        self.of_functions = all(map(callable, wrong.values()))
        self.__doc__ = check.__doc__
        for name, answer in wrong.items():
            if self.why(answer) is None:
                raise AssertionError(f"{check.__name__} accepts a wrong answer: {name}")

    def why(self, answer: Any) -> str | None:
        """The reason why an answer is wrong, or None if it is right. Raises `Unanswered`."""
        if answered(answer) is None:
            raise Unanswered
        if callable(answer) != self.of_functions:
            asked = "a function is asked for: give its name alone" if self.of_functions else "a value is asked for"
            return f"{asked}, not {shown(answer)}"
        answer = Answer(answer, self.wrong) if self.of_functions else answer
        reason = self._tried(answer)
        if self.of_functions and answer.changed:
            changes = f"it changes its argument `{answer.changed}`: work on a copy"
            return f"{reason}. Also, {changes}" if reason else changes
        return reason

    def _tried(self, answer: Any) -> str | None:
        try:
            self.check(answer)
        except Wrong as error:
            return str(error)
        except Unanswered:
            raise
        except Exception as error:  # any error that the reader's code raises makes the answer wrong
            if self.of_functions:
                return answer.raised(error)
            return f"your answer does not fit: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None

    def __call__(self, answer: Any) -> None:
        """Print whether an answer is right, and if not, why. Never raises, so the notebook continues."""
        try:
            why = self.why(answer)
        except Unanswered:
            print("· no answer yet")
        else:
            print("✓ right" if why is None else f"✗ not yet: {why}")

    def solution(self, answer: Any) -> None:
        """Print that a solution is right. Raises `AssertionError` if it is not."""
        if (why := self.why(answer)) is not None:
            raise AssertionError(f"the solution fails: {why}")
        print("✓ the solution is right")


def exercise(wrong: Mapping[str, Any]) -> Callable[[Callable[[Any], None]], Exercise]:
    """Turn a checker into an exercise.

    Args:
      wrong: typical wrong answers, keyed by what is wrong with them; at least one.

    Raises: `AssertionError` if the checker accepts one of them.
    """
    if not wrong:
        raise ValueError("an exercise needs a wrong answer, which its checker must reject")
    return lambda check: Exercise(check, wrong)


def predicted(guess: float | None, measured: float, *, within: float, unit: str = "") -> None:
    """Print a reader's prediction, made before the run, beside the measured value.

    >>> predicted(0.5, 0.81, within=0.1)
    You predicted 0.5; the measured value is 0.81. They differ by more than 0.1: what did you leave out?
    >>> predicted(None, 12.3, within=1, unit=" rounds")
    The measured value is 12.3 rounds. (To compare, set your prediction above before the run.)
    """
    measured = float(measured)
    if guess is None:
        print(f"The measured value is {measured:.4g}{unit}. (To compare, set your prediction above before the run.)")
    elif abs(guess - measured) <= within:
        print(f"You predicted {guess:.4g}{unit}; the measured value is {measured:.4g}{unit}. Well predicted.")
    else:
        print(
            f"You predicted {guess:.4g}{unit}; the measured value is {measured:.4g}{unit}. "
            f"They differ by more than {within:.4g}{unit}: what did you leave out?"
        )


def slide(draw: Callable[..., None], **values: Any) -> None:
    """Show controls for the arguments of `draw`; a batch run draws the figure once, at the initial values.

    Args:
      draw: draws a figure and shows it.
      values: an ipywidgets control per argument; its `value` is the initial one.
    """
    if progress.watched():
        from ipywidgets import interact

        interact(draw, **values)
    else:
        draw(**{name: control.value for name, control in values.items()})


class Linear(nnx.Module):
    """The outputs `x @ B @ kernel` without biases; B is the representation. Without `features` they are `x @ B`."""

    def __init__(self, input_shape: tuple, *, num_classes: int, features: Annotated[int, Range(0)] = 0, rngs: nnx.Rngs):
        shape = (*input_shape, features or num_classes)
        self.B = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape))
        self.features = features

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.B

    def make_head(self, num_classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(self.features, num_classes, use_bias=False, rngs=rngs) if self.features else nnx.Sequential()


class Squares(Task):
    """Least squares: half the squared distance between the outputs and the answers of a row."""

    headline = "distance"

    def row_loss(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum((outputs - y.reshape(outputs.shape)) ** 2, axis=-1) / 2

    def metrics(self, outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        return {"distance": jnp.sqrt(2 * self.row_loss(outputs, y))}


def toy(
    x: np.ndarray,
    y: np.ndarray,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    outputs: int = 1,
    sizes: np.ndarray | None = None,
    features: int = 0,
    model: Model | None = None,
    **options: Any,
) -> Problem:
    """A small problem from arrays: classification where `y` has whole numbers, least squares where it has others.

    Args:
      x: the rows of each client, `[clients, rows, d]`.
      y: their labels `[clients, rows]`, or answers `[clients, rows, ...]`.
      test: other rows and labels, on which models are judged; None: the same.
      outputs: the length of the model's output.
      sizes: how many rows of each client count; None: all.
      features: the length of the representation's output, see `Linear`.
      model: None: `Linear`.
      options: of `Problem`.

    >>> problem = toy(np.ones((3, 4, 2)), np.zeros((3, 4)))
    >>> problem.data, type(problem.task).__name__
    (Federated(toy, made here: 3 clients, rows of shape (2,), 1 classes), 'Squares')
    """

    def held(x: np.ndarray, y: np.ndarray, sizes: np.ndarray | None = None) -> tuple:
        y = np.asarray(y)
        kind = np.int32 if y.dtype.kind in "iu" else np.float32
        return np.float32(x), y.astype(kind), np.int32(np.full(len(x), x.shape[1]) if sizes is None else sizes)

    train = held(x, y, sizes)
    rows = train[0]
    data = Federated(*train, *(held(*test) if test else train), rows[0, :0], "toy", "made here", outputs)
    task = Task() if train[1].dtype == np.int32 else Squares()
    model = model or Model.of(Linear, rows.shape[2:], outputs, features=features)
    return Problem(data, model, task=task, **options)


def after_rounds(algorithm: Algorithm, problem: Problem, state: dict, num_rounds: int) -> dict:
    """The state after rounds in which every client takes part.

    >>> from fedlab_lite.algorithms import FedAvg
    >>> problem = toy(np.ones((3, 4, 2)), np.zeros((3, 4)))
    >>> fedavg = FedAvg(lr=0.1, batch_size=4, epochs=1)
    >>> state = after_rounds(fedavg, problem, fedavg.init(problem, jax.random.key(0)), 60)
    >>> bool(jnp.abs(state["params"]["representation"]["B"].sum()) < 1e-3)  # the output, 0 at the optimum
    True
    """
    one_round = jax.jit(type(algorithm).round)
    for index in range(num_rounds):
        state = one_round(algorithm, problem, state, problem.everyone(jax.random.key(index)))
    return state
