"""The rule of a parameter by its name, for every notebook.

A notebook's parameters cell states the type of each parameter. One with the name of a setting, of an algorithm's
hyper-parameter or of a model's option has that field's rule. `RANGES` has the rules of all others. A test fails for a
parameter without a rule, so a new notebook is checked as well.
"""

import ast
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from fedlab_lite.algorithms import ALGORITHMS, algorithm_options
from fedlab_lite.nn import MODELS, model_options
from fedlab_lite.runs.settings import Settings
from fedlab_lite.util import choose
from fedlab_lite.util.fields import FINITE, LARGEST, Range, Rule, check_value, kinds_of, rules_of, type_from

PRESETS = ("quick", "laptop", "paper")  # from small to large


def _all(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RANGES: dict[str, Rule] = (
    _all("preset", PRESETS)
    | _all("num_workers clients_a_round cohort writers rows most_rows many_clients", Range(1))
    | _all("local_epochs pretrain_epochs local_steps distill_steps num_steps resnet_steps num_terms", Range(1))
    | _all("num_draws draws num_seeds num_trials num_periods horizons repeats", Range(1))
    | _all("depths inputs memory late_round steady_rounds", Range(1))
    | _all("timed_rounds warm_up", Range(0))
    | _all("seed search_seed", Range(0, LARGEST))
    | _all("lrs fresh_lr step rho_over_L eta eta_factor bandwidth heterogeneity epsilons", Range(0, above=True))
    | _all("tolerance step_seconds", Range(0))
    | _all("nus", Range(0, 1))
    | _all("delta radius norm", Range(0, 1, above=True, below=True))
    | _all("prediction prediction_advantage prediction_cosine prediction_doubled prediction_evaluations", FINITE)
    | _all("prediction_error prediction_gain prediction_middle prediction_rest prediction_rho", FINITE)
    | _all("prediction_rounds prediction_saved prediction_speedup prediction_steps prediction_zeros", FINITE)
)


def rules(name: str) -> list[Rule]:
    """The rules of all fields with this name, of settings, algorithms and models; without any, that of `RANGES`."""
    known = (rules_of(Settings), *map(algorithm_options, ALGORITHMS), *map(model_options, MODELS))
    found = [fields[name].rule for fields in known if name in fields]
    return found or ([RANGES[name]] if name in RANGES else [])


def rule_of(name: str, hint: Any) -> Rule:
    """The rule of a parameter of this type: of several the narrowest; None: only its type is checked.

    >>> str(rule_of("lr", float | None)), str(rule_of("width", int)), rule_of("solver", str)
    ('above 0', 'at least 1', ('fixed_point', 'anderson', 'broyden'))
    """

    def narrow(rule: Rule) -> tuple:
        if not isinstance(rule, Range):
            return ()
        return rule.low, rule.above, -rule.high, rule.below, not rule.empty

    fitting = [rule for rule in rules(name) if isinstance(rule, Range) != (str in kinds_of(hint))]
    return max(fitting, key=narrow, default=None)


def check_parameters(namespace: Mapping[str, Any]) -> None:
    """Check the parameters of a notebook; `namespace` is its `globals()`.

    They are the names that its parameters cell annotates, so a cell of a user's own notebook is checked, too. papermill
    warns of other names, and then runs the defaults; here they are an error.

    >>> check_parameters({"__annotations__": {"lr": float | None}, "lr": 0.0})
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: lr must be of type float | None, above 0, got 0.0
    """
    hints = namespace.get("__annotations__") or {}
    if not hints and "__annotate__" in namespace:  # Python 3.14 and later
        hints = namespace["__annotate__"](1)
    for name in _passed(namespace.get("In", ())):
        choose("parameter of this notebook", name, hints)
    for name, hint in hints.items():
        if isinstance(hint, str):  # under `from __future__ import annotations`
            with contextlib.suppress(ValueError, SyntaxError):
                hint = type_from(hint)
        if name in namespace and not isinstance(hint, str) and (rules(name) or bool in kinds_of(hint)):
            check_value(name, namespace[name], hint, rule_of(name, hint))


def _passed(cells: Iterable[str]) -> list[str]:
    """The names that papermill set, in the cell that it adds; `cells` are those that ran so far."""
    added = [ast.parse(cell) for cell in cells if cell.startswith("# Parameters\n")]
    return [node.targets[0].id for cell in added for node in cell.body if isinstance(node, ast.Assign)]
