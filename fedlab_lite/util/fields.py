"""Checks of types and ranges: for the fields of a dataclass, by their metadata, and for any single value.

None is always in range where the type allows it. A list is in range if it is not empty and all its numbers are in
range. NaN and infinity are never in range, nor is a whole number that JAX's int32 cannot hold.
"""

import math
import types
from collections.abc import Callable
from dataclasses import field, fields
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from fedlab_lite.util.errors import InputError, did_you_mean

LARGEST = 2**31 - 1  # the largest whole number that JAX's int32 holds

_UNIONS = (types.UnionType, Union)


class Range(NamedTuple):
    """The numbers from `low` to `high`; `above` excludes `low`, `below` excludes `high`.

    >>> str(Range(1)), str(Range(0, above=True)), str(Range(0, 1)), str(Range(0, 1, above=True))
    ('at least 1', 'above 0', '0 to 1', 'above 0 and at most 1')
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        low, high = value > self.low if self.above else value >= self.low, value <= self.high
        return math.isfinite(value) and low and high and not (self.below and value == self.high)

    def __str__(self) -> str:
        if self.low == -math.inf:
            return "finite"
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        if self.high == math.inf:
            return low
        if not self.above and not self.below:
            return f"{self.low:g} to {self.high:g}" if self.high < LARGEST else f"{self.low:g} to 2^31 - 1"
        return f"{low} and {'below' if self.below else 'at most'} {self.high:g}"


FINITE = Range(-math.inf)
Rule = Range | tuple[str, ...] | None  # a range of numbers, or the allowed words; None: only the type is checked


def ranged(
    default: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: bool = False,
    below: bool = False,
    static: bool = False,
) -> Any:
    """A dataclass field with a default and a `Range`; a `static` field is a constant of a compiled round."""
    return field(default=default, metadata={"rule": Range(low, high, above, below), "static": static})


def one_of(default: str, *words: str) -> Any:
    """A dataclass field with a default, whose value is the default or another one of `words`.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Walk:
    ...     pace: str = one_of("slow", "fast")
    >>> check_fields(Walk("fats"), "Walk")
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: pace of Walk must be one of slow, fast, got 'fats'; did you mean 'fast'?
    """
    return field(default=default, metadata={"rule": tuple(dict.fromkeys((default, *words)))})


@cache
def hints_of(record: type) -> dict[str, Any]:
    """The types of a dataclass's fields, by name.

    Types written as text are resolved, such as those under `from __future__ import annotations`. Raises `InputError`
    for a type that its module does not define.
    """
    try:
        hints = get_type_hints(record)
    except NameError as error:
        raise InputError(f"the types of {record.__name__}'s fields cannot be read: {error}") from error
    return {each.name: hints[each.name] for each in fields(record)}


@cache
def rules_of(record: type) -> dict[str, Rule]:
    """The rules of a dataclass's fields, set by `ranged` or `one_of`; a number without a rule must be finite."""
    numbers = {name for name, hint in hints_of(record).items() if {int, float} & set(kinds_of(hint))}
    plain = {name: FINITE if name in numbers else None for name in hints_of(record)}
    return plain | {each.name: each.metadata["rule"] for each in fields(record) if "rule" in each.metadata}


def check_fields(record: Any, where: str = "", known: Callable[[Any], bool] = lambda value: True) -> None:
    """Raise `InputError` for a value that breaks its field's type or rule; `known` selects the values to check."""
    rules = rules_of(type(record))
    for name, hint in hints_of(type(record)).items():
        if known(getattr(record, name)):
            check_value(f"{name} of {where}" if where else name, getattr(record, name), hint, rules[name])


def fits(value, hint) -> bool:
    """Whether a value is of an annotated type; an int passes as a float, a list as a tuple, a bool as no number.

    >>> fits(3, float), fits(True, int), fits([1, 2], tuple[int, ...]), fits("x", int | None)
    (True, False, True, False)
    """
    origin = get_origin(hint)
    if origin in _UNIONS:
        return any(fits(value, option) for option in get_args(hint))
    if hint in (list, tuple) or origin in (list, tuple):
        inner = get_args(hint)[0] if get_args(hint) else object
        return isinstance(value, list | tuple) and all(fits(item, inner) for item in value)
    if hint is None:
        return value is None
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if hint is float else origin or hint)


def type_name(hint) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def check_type(name: str, value, hint, allowed: str = "") -> None:
    """Raise `InputError` unless `value` is of type `hint`; `allowed` describes further conditions in the message."""
    if not fits(value, hint):
        raise _wrong(name, value, hint, allowed)


def check_value(name: str, value: Any, hint: Any, rule: Rule = None) -> None:
    """Raise `InputError` unless a value has the type `hint` and meets `rule`; the message names both.

    >>> check_value("lr", 0.0, float | None, Range(0, above=True))
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: lr must be of type float | None, above 0, got 0.0 (float)
    """
    if not isinstance(rule, Range):
        allowed = f"one of {', '.join(rule)}" if rule else ""
        check_type(name, value, hint, allowed)
        if rule and value is not None and value not in rule:
            raise InputError(f"{name} must be {allowed}, got {value!r}{did_you_mean(value, rule)}")
        return
    several = isinstance(value, list | tuple)
    numbers = value if several else [] if value is None else [value]
    allowed = f"not empty, each {rule}" if several or list in kinds_of(hint) else str(rule)
    check_type(name, value, hint, allowed)
    if any(isinstance(number, int) and number > LARGEST for number in numbers):
        raise _wrong(name, value, hint, f"{allowed}; no whole number above 2^31 - 1")
    if (several and not value) or not all(map(rule.holds, numbers)):
        raise _wrong(name, value, hint, allowed)


def _wrong(name: str, value: Any, hint: Any, allowed: str) -> InputError:
    also = f", {allowed}" if allowed else ""
    return InputError(f"{name} must be of type {type_name(hint)}{also}, got {value!r} ({type(value).__name__})")


def kinds_of(hint: Any) -> tuple:
    """The types that `hint` allows: one, or all members of a union, without the element types of lists."""
    return tuple(get_origin(kind) or kind for kind in (get_args(hint) if get_origin(hint) in _UNIONS else (hint,)))


def normal(value: Any, hint: Any) -> Any:
    """A value of type `hint` in its normal form: an int where a float belongs becomes a float, a list a tuple.

    >>> normal(1, float | None), normal([1, 2], tuple[float, ...]), normal(1, int)
    (1.0, (1.0, 2.0), 1)
    """
    if isinstance(value, list | tuple):
        return tuple(float(each) if float in get_args(hint)[:1] else each for each in value)
    wants_float = float in (hint, *get_args(hint)) and int not in get_args(hint)
    return float(value) if wants_float and isinstance(value, int) else value
