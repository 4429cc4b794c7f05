"""Tools that the lessons of the course share: exercises with checkers, predictions and a slider.

An exercise has two parts: a checker, which is a function that raises `Wrong` through `expect`, and wrong answers that
readers typically give. Each wrong answer is tried when the exercise is made, and the checker must reject it. A checker
that accepts a wrong answer is an error, both in a notebook and in CI.

>>> @exercise(wrong={"forgets the sizes": lambda models, sizes: sum(models) / len(models)})
... def check_average(average):
...     found = average([0.0, 4.0], [1, 3])
...     expect(found == 3, f"0 of size 1 and 4 of size 3 average to 3, not {found}; did you weigh by size?")
>>> check_average(lambda models, sizes: sum(models) / len(models))
✗ not yet: 0 of size 1 and 4 of size 3 average to 3, not 2.0; did you weigh by size?
>>> check_average(lambda models, sizes: ...)
· no answer yet
>>> check_average.solution(lambda models, sizes: sum(m * n for m, n in zip(models, sizes)) / sum(sizes))
✓ right
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from fedlab_lite.util import progress


class Wrong(Exception):
    """An answer is wrong; the message tells the reader why."""


class Unanswered(Exception):
    """The reader has not replaced the exercise's `...` yet."""


def expect(right: Any, otherwise: str) -> None:
    """Raise `Wrong` with the words `otherwise` unless `right` is true (an array: everywhere)."""
    if not getattr(right, "all", lambda: right)():
        raise Wrong(otherwise)


def _answered(value: Any) -> Any:
    if value is None or value is ...:
        raise Unanswered
    return value


class Exercise:
    """A checker that is called with an answer (a value or a function) and prints whether it is right."""

    def __init__(self, check: Callable[[Any], None], wrong: Mapping[str, Any]):
        self.check = check
        self.wrong = wrong
        self.__doc__ = check.__doc__
        for name, answer in wrong.items():
            if self.why(answer) is None:
                raise AssertionError(f"{check.__name__} accepts a wrong answer: {name}")

    def why(self, answer: Any) -> str | None:
        """The reason why an answer is wrong, or None if it is right. Raises `Unanswered`."""

        def asked(*args, **kwargs):
            return _answered(answer(*args, **kwargs))

        try:
            self.check(wraps(answer)(asked) if callable(answer) else _answered(answer))
        except Wrong as error:
            return str(error)
        except Unanswered:
            raise
        except Exception as error:  # any error that the reader's code raises makes the answer wrong
            return f"it raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
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
        print("✓ right")


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
