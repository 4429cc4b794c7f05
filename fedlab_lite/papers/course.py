"""What the course's lessons share: exercises whose checkers say what is wrong, predictions, a slider.

An exercise is a checker, a function that raises `Wrong` by `expect`, and wrong answers that readers give. Each of them
is tried when the checker is made, and has to fail: a checker that lets one pass is an error, in a notebook and in CI.

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
    """What is wrong with an answer, as the reader should be told."""


class Unanswered(Exception):
    """The exercise's `...` is still there."""


def expect(right: Any, otherwise: str) -> None:
    """Raise `Wrong` with the words `otherwise` unless `right` is true (an array: everywhere)."""
    if not getattr(right, "all", lambda: right)():
        raise Wrong(otherwise)


def _answered(value: Any) -> Any:
    if value is None or value is ...:
        raise Unanswered
    return value


class Exercise:
    """A checker that can be called with an answer, a value or a function, and says what it makes of it."""

    def __init__(self, check: Callable[[Any], None], wrong: Mapping[str, Any]):
        self.check = check
        self.wrong = wrong
        self.__doc__ = check.__doc__
        for name, answer in wrong.items():
            if self.why(answer) is None:
                raise AssertionError(f"{check.__name__} takes a wrong answer for right: {name}")

    def why(self, answer: Any) -> str | None:
        """What is wrong with an answer; None if nothing is. Raises `Unanswered`."""
        if callable(answer):

            @wraps(answer)
            def asked(*args, **kwargs):
                return _answered(answer(*args, **kwargs))

        try:
            self.check(asked if callable(answer) else _answered(answer))
        except Wrong as error:
            return str(error)
        except Unanswered:
            raise
        except Exception as error:  # the reader's code: whatever it raises is the answer's fault
            return f"it raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None

    def __call__(self, answer: Any) -> None:
        """Say whether an answer is right, and if it is not, why. Never raises, so that a notebook goes on."""
        try:
            why = self.why(answer)
        except Unanswered:
            print("· no answer yet")
        else:
            print("✓ right" if why is None else f"✗ not yet: {why}")

    def solution(self, answer: Any) -> None:
        """Say that an answer is right. Raises `AssertionError` where it is not: a solution has to be."""
        if (why := self.why(answer)) is not None:
            raise AssertionError(f"the solution fails: {why}")
        print("✓ right")


def exercise(wrong: Mapping[str, Any]) -> Callable[[Callable[[Any], None]], Exercise]:
    """Make an exercise of a checker.

    Args:
      wrong: answers that readers give, by what is wrong with them; at least one.

    Raises: `AssertionError` if the checker takes one of them for right.
    """
    if not wrong:
        raise ValueError("an exercise needs a wrong answer that its checker refuses")
    return lambda check: Exercise(check, wrong)


def predicted(guess: float | None, measured: float, *, within: float, unit: str = "") -> None:
    """Compare a reader's prediction, made before the run, with what came out.

    >>> predicted(0.5, 0.81, within=0.1)
    You said 0.5; it is 0.81. More than 0.1 apart: what did you not count?
    >>> predicted(None, 12.3, within=1, unit=" rounds")
    It is 12.3 rounds. (Set your prediction above before you run it, and see.)
    """
    measured = float(measured)
    if guess is None:
        print(f"It is {measured:.4g}{unit}. (Set your prediction above before you run it, and see.)")
    elif abs(guess - measured) <= within:
        print(f"You said {guess:.4g}{unit}; it is {measured:.4g}{unit}. Well predicted.")
    else:
        print(
            f"You said {guess:.4g}{unit}; it is {measured:.4g}{unit}. "
            f"More than {within:.4g}{unit} apart: what did you not count?"
        )


def slide(draw: Callable[..., None], **values: Any) -> None:
    """Let the reader move the arguments of `draw`; in a batch run, and so on a page, it is drawn once as it starts.

    Args:
      draw: draws a figure and shows it.
      values: an ipywidgets control of each argument; where `draw` starts is its `value`.
    """
    if progress.watched():
        from ipywidgets import interact

        interact(draw, **values)
    else:
        draw(**{name: control.value for name, control in values.items()})
