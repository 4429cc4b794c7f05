"""Types and ranges of parameters, by name: one table for every notebook, the command line and `Settings`.

The type of a notebook's parameter is what its parameters cell says; the range is here. A test fails for a parameter
whose name is not in the table, so a new notebook is checked as well. None, where the type has it, is always in range;
a list is in range if it is not empty and all its numbers are; NaN and infinity never are.
"""

import math
import types
from collections.abc import Mapping
from typing import Any, NamedTuple, Union, get_args, get_origin

from fedlab_lite.util import InputError

PRESETS = ("quick", "laptop", "paper")  # from small to large
LARGEST = 2**31 - 1  # of any whole number: what JAX's int32 holds

_UNIONS = (types.UnionType, Union)


class Range(NamedTuple):
    """From `low` to `high`, which belong to it unless `above` or `below` say otherwise.

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


def _all(names: str, range: Range) -> dict[str, Range]:
    return dict.fromkeys(names.split(), range)


RANGES: dict[str, Range] = (
    _all("num_clients num_workers clients_a_round cohort cohort_size classes_per_client writers", Range(1))
    | _all("rows most_rows train_size test_size batch_size distill_batch_size", Range(1))
    | _all("epochs head_epochs local_epochs pretrain_epochs local_steps head_steps distill_steps", Range(1))
    | _all("num_draws draws num_seeds num_trials num_periods horizons repeats samples eval_every", Range(1))
    | _all("width features depths channels layers max_iter warm_iter k num_edges late_round steady_rounds", Range(1))
    | _all("inputs memory stride num_steps num_terms many_clients", Range(1))
    | _all("unseen_clients num_rounds timed_rounds join_epochs warm_up shared_size", Range(0))
    | _all("seed seeds data_seed graph_seed search_seed", Range(0, LARGEST))
    | _all("lr lrs head_lr server_lr fresh_lr step rho rho_over_L eta_factor bandwidth", Range(0, above=True))
    | _all("alpha heterogeneity norm eta clip epsilons", Range(0, above=True))
    | _all("penalty prox tolerance step_seconds shared_alpha", Range(0))
    | _all("nu nus lr_decay edge_probability centre", Range(0, 1))
    | _all("density", Range(0, 1, above=True))
    | _all("kappa validation_size", Range(0, 1, below=True))
    | _all("delta radius", Range(0, 1, above=True, below=True))
    | _all(
        "prediction prediction_advantage prediction_cosine prediction_doubled prediction_evaluations", Range(-math.inf)
    )
    | _all("prediction_gain prediction_middle prediction_rest prediction_rho prediction_rounds", Range(-math.inf))
    | _all("prediction_saved prediction_speedup prediction_steps prediction_zeros", Range(-math.inf))
)


def words(name: str) -> dict[str, tuple[str, ...] | None]:
    """What a parameter that is a word may be, by its name; None: what that is, the data say. Empty for other names."""
    from fedlab_lite.algorithms.parts import MIXING
    from fedlab_lite.deq import SOLVERS
    from fedlab_lite.engine import GRAPHS

    known = {"preset": PRESETS, "graph": GRAPHS, "mixing": MIXING, "solver": tuple(SOLVERS), "dataset": None}
    return {name: known[name]} if name in known else {}


def fits(value, hint) -> bool:
    """Whether a value is of an annotated type; an int passes for a float, a list for a tuple, a bool for neither.

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
    """Raise `InputError` unless `value` is of type `hint`; `allowed` says in words what else is asked of it."""
    if not fits(value, hint):
        raise _wrong(name, value, hint, allowed)


def check(name: str, value: Any, hint: Any, where: str = "") -> None:
    """Raise `InputError`, naming type and range, unless the parameter `name` (of `where`) may be `value`.

    >>> check("lr", 0.0, float | None, "fig04")
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: lr of fig04 must be of type float | None, above 0, got 0.0 (float)
    """
    said, span = f"{name} of {where}" if where else name, RANGES.get(name)
    if span is None:
        options = words(name).get(name)
        allowed = f"one of {', '.join(options)}" if options else ""
        check_type(said, value, hint, allowed)
        if options and value is not None and value not in options:
            raise _wrong(said, value, hint, allowed)
        return
    several = isinstance(value, list | tuple)
    numbers = value if several else [] if value is None else [value]
    allowed = f"not empty, each {span}" if several or list in _kinds(hint) else str(span)
    check_type(said, value, hint, allowed)
    if any(isinstance(number, int) and number > LARGEST for number in numbers):
        raise _wrong(said, value, hint, f"{allowed}; no whole number above 2^31 - 1")
    if (several and not value) or not all(map(span.holds, numbers)):
        raise _wrong(said, value, hint, allowed)


def _wrong(name: str, value: Any, hint: Any, allowed: str) -> InputError:
    also = f", {allowed}" if allowed else ""
    return InputError(f"{name} must be of type {type_name(hint)}{also}, got {value!r} ({type(value).__name__})")


def check_parameters(namespace: Mapping[str, Any]) -> None:
    """Check the parameters of a notebook, or what a reader made of them: `namespace` is its `globals()`.

    They are the names that its parameters cell annotates, so a cell of a reader's own notebook is checked, too.
    """
    hints = namespace.get("__annotations__") or {}
    if not hints and "__annotate__" in namespace:  # Python 3.14 and later
        hints = namespace["__annotate__"](1)
    for name, hint in hints.items():
        if name in namespace and not isinstance(hint, str) and (name in RANGES or words(name) or bool in _kinds(hint)):
            check(name, namespace[name], hint)


def _kinds(hint: Any) -> tuple:
    """A type, or all of a union, without what lists hold."""
    return tuple(get_origin(kind) or kind for kind in (get_args(hint) if get_origin(hint) in _UNIONS else (hint,)))
