"""Runs: from settings to a stored history, with names, checkpoints, the store of finished runs, and tuning.

`Settings` hold everything that decides a run's numbers; `run` and `run_all` compute what the store lacks.
"""

from typing import Any

from fedlab_lite.runs.build import algorithm_of, build_problem, data_fingerprint, moment_of
from fedlab_lite.runs.checks import PRESETS, check_parameters, rule_of
from fedlab_lite.runs.runner import final_state, measured, missing, run, run_all, run_name, run_names
from fedlab_lite.runs.settings import Settings

_TUNING = ("held_out", "score", "tune", "with_options")


def __getattr__(name: str) -> Any:
    """Load the names of `tuning` on first use, because they need Optuna and running does not."""
    if name not in _TUNING:
        raise AttributeError(f"fedlab_lite.runs has no name {name!r}")
    from fedlab_lite.runs import tuning

    return getattr(tuning, name)
