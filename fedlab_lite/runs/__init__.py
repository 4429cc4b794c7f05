"""Runs: from settings to a stored history, with names, checkpoints, the store of finished runs, and tuning.

`Settings` hold everything that decides a run's numbers; `run` and `run_all` compute what the store lacks.
"""

from fedlab_lite.runs.build import algorithm_of, build_problem, data_fingerprint, metric_at, moment_of
from fedlab_lite.runs.checks import PRESETS, check_parameters, rule_of
from fedlab_lite.runs.names import run_name
from fedlab_lite.runs.runner import final_state, measured, missing, run, run_all, run_names
from fedlab_lite.runs.settings import Settings
from fedlab_lite.runs.tuning import held_out, score, tune, with_options
