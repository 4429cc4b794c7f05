"""Types and ranges of parameters, by name: one table for every notebook, the command line and `Settings`.

A notebook's parameters cell states the type of each parameter; the range is here. A test fails for a parameter whose
name is not in the table, so a new notebook is checked as well. None, where the type allows it, is always in range. A
list is in range if it is not empty and all its numbers are in range. NaN and infinity are never in range.
"""

import math
from collections.abc import Mapping
from typing import Any

from fedlab_lite.util.fields import LARGEST, Range, Rule, check_value, kinds_of

PRESETS = ("quick", "laptop", "paper")  # from small to large


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
    """The words that a parameter may be, by its name; None: the data decide. Empty for other names."""
    from fedlab_lite.algorithms.parts import MIXING
    from fedlab_lite.deq import SOLVERS
    from fedlab_lite.engine import GRAPHS

    known = {"preset": PRESETS, "graph": GRAPHS, "mixing": MIXING, "solver": tuple(SOLVERS), "dataset": None}
    return {name: known[name]} if name in known else {}


def check(name: str, value: Any, hint: Any, where: str = "") -> None:
    """Raise `InputError`, naming type and range, unless `value` is allowed for the parameter `name` (of `where`).

    >>> check("lr", 0.0, float | None, "fig04")
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: lr of fig04 must be of type float | None, above 0, got 0.0 (float)
    """
    check_value(f"{name} of {where}" if where else name, value, hint, rule_of(name))


def rule_of(name: str) -> Rule:
    """The range of a parameter, or the words that it may be; None: this name has no rule."""
    return RANGES.get(name) or words(name).get(name)


def check_parameters(namespace: Mapping[str, Any]) -> None:
    """Check the parameters of a notebook; `namespace` is its `globals()`.

    They are the names that its parameters cell annotates, so a cell of a user's own notebook is checked, too.
    """
    hints = namespace.get("__annotations__") or {}
    if not hints and "__annotate__" in namespace:  # Python 3.14 and later
        hints = namespace["__annotate__"](1)
    for name, hint in hints.items():
        if (
            name in namespace
            and not isinstance(hint, str)
            and (name in RANGES or words(name) or bool in kinds_of(hint))
        ):
            check(name, namespace[name], hint)
