"""From settings to a stored history: names, checkpoints, the store of finished runs, and tuning.

`Settings` say everything that decides a run's numbers; `run` and `run_all` compute what the store lacks.
"""

from fedlab_lite.runs.build import algorithm_of, build_problem, data_fingerprint
from fedlab_lite.runs.checks import PRESETS, RANGES, check, check_parameters
from fedlab_lite.runs.runner import final_state, measured, run, run_all, run_name, run_names
from fedlab_lite.runs.settings import Settings, model_option_types, setting_types
from fedlab_lite.runs.tuning import held_out, score, tune, with_options
