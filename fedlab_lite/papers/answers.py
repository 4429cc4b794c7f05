"""How a reader's answer differs from the right one, in words: for the checkers of the course.

>>> difference([1, 2.5], [1, 2], "f(3)")
'f(3) is [1, 2.5], not [1, 2]'
>>> difference(0.5, [1, 2], "f(3)")
'f(3) is a number, not an array of shape (2,)'
>>> difference({"head": 3}, {"head": 4, "body": 1}, "f(3)")
"f(3) has the keys ['head'], not ['body', 'head']"
>>> difference((1, 2), (1, 3), "f(3)")
'part 2 of f(3) is 2, not 3'
"""

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any

import numpy as np

SHOWN = 12  # numbers of an array that a message shows
LONGEST = 120  # characters of a call that a message shows


class Wrong(Exception):
    """An answer is wrong; the message tells the reader why."""


class Unanswered(Exception):
    """The reader has not replaced the exercise's `...` yet."""


def answered(value: Any) -> Any:
    """The value. Raises `Unanswered` if it is `...`, or a pair, say, that contains it."""
    if value is ... or (isinstance(value, tuple | list) and any(part is ... for part in value)):
        raise Unanswered
    return value


def copied(value: Any) -> Any:
    """A copy of the arrays, lists and dictionaries in a value; the rest is the same."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple | list):
        return type(value)(map(copied, value))
    return {key: copied(part) for key, part in value.items()} if isinstance(value, dict) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return a is b  # not copied: it can only have been replaced


class Answer:
    """A reader's function as a checker calls it: with copies of the arguments. It notes which of them are changed."""

    def __init__(self, function: Callable, wrong: Mapping[str, Any]):
        update_wrapper(self, function)
        self.function = function
        self.wrong = wrong
        name = getattr(function, "__name__", "")
        self.name = name if name.isidentifier() else "your function"
        self.changed: str | None = None

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns. Raises `Unanswered`, and `Wrong` if it returns nothing."""
        given = copied(arguments)
        found = answered(self.function(*given))
        for place, (before, after) in enumerate(zip(arguments, given, strict=True)):
            if not _same(before, after):
                self.changed = self._argument(place)
        if found is None:
            raise Wrong("you returned nothing: does your function end with `return`?")
        return found

    def _argument(self, place: int) -> str:
        names = list(inspect.signature(self.function).parameters)
        return names[place] if place < len(names) else f"number {place + 1}"

    def raised(self, error: Exception) -> str:
        """What to say of an error: its kind, its message, and the line of the reader's code."""
        said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".removesuffix(": ")
        frames = traceback.extract_tb(error.__traceback__)
        calls = [n for n, frame in enumerate(frames) if frame.filename == __file__ and frame.name == "__call__"]
        if not calls:
            return f"what it returns does not fit: {said}"
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        own = [frame for frame in frames[calls[-1] + 1 :] if code and frame.filename == code.co_filename]
        return f"it raises {said}" + (f", in line {own[-1].lineno}: `{own[-1].line}`" if own else "")


def called(name: str, case: tuple, number: int) -> str:
    """A call in a message, with its arguments if they are short."""
    call = f"{name}({', '.join(map(shown, case))})"
    return call if len(call) <= LONGEST else f"{name}(...) in case {number}"


def shown(value: Any, digits: int = 4) -> str:
    """A value in a message: short, and on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))}{',' * (len(value) == 1)})"
    if callable(value):
        name = getattr(value, "__name__", "")
        return name if name.isidentifier() else "a function"
    array = _array(value)
    if array is None:
        return repr(value)[:60]
    if array.size > SHOWN:
        return f"an array of shape {array.shape}"
    return str(np.vectorize(lambda x: f"{x:.{digits}g}", otypes=[object])(array).tolist()).replace("'", "")


def _array(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        return None


def numbers(value: Any, what: str, shape: tuple[int | None, ...] | None = ()) -> np.ndarray:
    """A number, or numbers of any kind (list, tuple, NumPy, JAX), as an array of float64.

    Args:
      what: how a message calls the value.
      shape: that it must have; None in it: of any length; None: any shape.

    Raises: `Wrong` if they are no numbers, not finite, or of another shape.
    """
    answered(value)
    array = _array(value)
    if array is None or isinstance(value, str):
        raise Wrong(f"{what} is {shown(value)} of type {type(value).__name__}: {kind(shape)} is asked for")
    if shape is not None and not fits(array.shape, shape):
        raise Wrong(f"{what} is {kind(array.shape)}, not {kind(shape)}")
    if not np.isfinite(array).all():
        raise Wrong(f"{what} is not finite: {shown(array)}")
    return array


def fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether a shape is the wanted one, in which None is any length."""
    return len(shape) == len(wanted) and all(n in (m, None) for m, n in zip(shape, wanted, strict=True))


def kind(shape: tuple[int | None, ...] | None) -> str:
    """'a number', or 'an array' and its shape."""
    if shape is None:
        return "an array"
    lengths = ", ".join("any" if n is None else str(n) for n in shape)
    return f"an array of shape ({lengths}{',' * (len(shape) == 1)})" if shape else "a number"


def parts(value: Any, count: int, what: str = "your answer") -> Sequence[Any]:
    """The parts of an answer that has several. Raises `Wrong` if it does not have `count` of them."""
    answered(value)
    if not hasattr(value, "__len__") or isinstance(value, dict | str):
        raise Wrong(f"{what} is one value; {count} are asked for, such as a tuple")
    if len(value) != count:
        raise Wrong(f"{what} has {len(value)} parts; {count} are asked for")
    return list(value)


def difference(found: Any, expected: Any, what: str, close: float = 1e-5) -> str | None:
    """How an answer differs from the expected one, or None if it does not, by more than `close` (relative)."""
    try:
        if isinstance(expected, dict):
            return _of_keys(found, expected, what, close)
        if isinstance(expected, tuple):
            pairs = enumerate(zip(parts(found, len(expected), what), expected, strict=True), 1)
            gaps = (difference(a, b, f"part {n} of {what}", close) for n, (a, b) in pairs)
            return next((gap for gap in gaps if gap), None)
        expected = np.asarray(expected, float)
        array = numbers(found, what, expected.shape)
    except Wrong as error:
        return str(error)
    if np.allclose(array, expected, rtol=close, atol=close):
        return None
    if expected.size > SHOWN:
        place = np.unravel_index(np.abs(array - expected).argmax(), expected.shape)
        return f"{what} is {array[place]:.4g} at [{', '.join(map(str, place))}], not {expected[place]:.4g}"
    digits = next((n for n in (4, 8) if shown(array, n) != shown(expected, n)), 16)
    return f"{what} is {shown(array, digits)}, not {shown(expected, digits)}"


def _of_keys(found: Any, expected: dict, what: str, close: float) -> str | None:
    if not isinstance(found, Mapping):
        return f"{what} is {shown(found)}, not a dictionary"
    if set(found) != set(expected):
        return f"{what} has the keys {sorted(found, key=str)}, not {sorted(expected)}"
    gaps = (difference(found[key], expected[key], f"{key!r} of {what}", close) for key in expected)
    return next((gap for gap in gaps if gap), None)
