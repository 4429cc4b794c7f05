"""Tuning: Optuna searches step sizes and penalties; a batch of trials is one program, and every run is stored.

Batch k is drawn only from the trials of the batches before it, with a seed of its own. So the same search draws the
same trials again and reads their runs from the store. A search that was interrupted, or is extended later, continues.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedlab_lite.algorithms import algorithm_options
from fedlab_lite.engine import History
from fedlab_lite.runs import runner
from fedlab_lite.runs.settings import Settings
from fedlab_lite.util import InputError, choose
from fedlab_lite.util.fields import Range, check_value

Spaces = Mapping[str, Sequence[float]]  # option: (low, high)

# Options are drawn one by one, and the trials of a batch are independent: all versions of Optuna can do that.
# TPE begins after ten trials: after four, it would prefer the corner that is furthest from the three worse ones.
SAMPLER = {"multivariate": False, "constant_liar": False, "n_startup_trials": 10}


def with_options(settings: Settings, **options: float) -> Settings:
    """The same settings with other options of the algorithm.

    >>> with_options(Settings(algorithm_options={"lr": 0.1, "epochs": 2}), lr=0.5).algorithm_options
    (('epochs', 2), ('lr', 0.5))
    """
    return replace(settings, algorithm_options=dict(settings.algorithm_options) | options)


def held_out(settings: Settings) -> Settings:
    """The settings of a trial, with rows held out of every client's training rows.

    A fifth is held out unless the settings give a share.
    """
    return replace(settings, validation_size=settings.validation_size or 0.2)


def score(history: History, metric: str = "accuracy") -> float:
    """The mean over seeds of a metric at the end (`History.final`); a seed that diverged counts as 0."""
    return float(np.where(history.diverged, 0.0, history.final(metric)).mean())


def tune(
    settings: Settings,
    spaces: Spaces,
    *,
    num_trials: int,
    batch: int = 4,
    metric: str = "accuracy",
    seed: int = 0,
    progress: bool | None = None,
) -> Any:
    """Search options of the algorithm for the largest `score`, by log-uniform draws and then Optuna's TPE.

    TPE begins after ten trials. Trials are scored on rows held out of the training rows, see `held_out`. Test rows have
    no influence.

    Args:
      settings: the run; its values of the searched options are ignored.
      spaces: option -> (low, high), both positive; options that are floats.
      num_trials: trials in all. The same call again trains nothing, and one with more trials only those.
      batch: trials that are drawn before any of their results is known.
      metric: one that a judgement on held-out rows has, of which more is better: the task's headline ('accuracy').
      seed: draws the trials; the settings have the seeds of the runs.
      progress: as in `runs.run_all`, with one bar per batch.

    Returns: a study in memory with `num_trials` trials: `best_params`, `best_value`, `trials`. A trial has two user
      attributes: 'test' is the same score on the test rows, for the report only; 'diverged' is whether one of its seeds
      diverged. The histories are those of `run_all` with `with_options(held_out(settings), **trial.params)`.

    Raises: `InputError`, and as `run_all`.

    Source: Akiba et al., "Optuna", KDD 2019; FedF-ADMM tunes every algorithm with it (Sec. VI).

    Example:
      >>> tiny = Settings(num_clients=4, num_rounds=1, model_options={"width": 8})
      >>> study = tune(tiny, {"lr": (0.01, 0.1)}, num_trials=2, batch=2)
      >>> len(study.trials), 0.01 <= study.best_params["lr"] <= 0.1
      (2, True)
    """
    import optuna

    for name, value, least in (("num_trials", num_trials, 1), ("batch", batch, 1), ("seed", seed, 0)):
        check_value(name, value, int, Range(least))
    if metric == "loss":
        raise InputError("tune looks for the largest score, and of a loss less is better; use metric='accuracy'")
    settings = held_out(settings)
    ends = _ends(settings, spaces)
    space = {name: optuna.distributions.FloatDistribution(*ends[name], log=True) for name in sorted(ends)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for first in range(0, num_trials, batch):
        asked = _ask(study, space, batch, seed)[: num_trials - first]
        trials = [with_options(settings, **params) for params in asked]
        histories = runner.run_all(dict(enumerate(trials)), progress=progress).values()
        for params, history in zip(asked, histories, strict=True):
            about = {"diverged": any(history.diverged), "test": score(history, metric)}
            value = score(history, f"{metric}_validation")
            about = {"user_attrs": about, "distributions": space}
            study.add_trial(optuna.trial.create_trial(params=params, value=value, **about))
    return study


def _ends(settings: Settings, spaces: Spaces) -> dict[str, tuple[float, ...]]:
    options = algorithm_options(settings.algorithm)
    floats = [name for name, allowed in options.items() if allowed.hint in (float, float | None)]
    if not spaces:
        raise InputError(f"there are no options to search; {settings.algorithm} has {', '.join(floats)}")
    for name, ends in spaces.items():
        choose(f"float option of algorithm {settings.algorithm}", name, floats)
        check_value(f"the range of {name}", ends, tuple[float, ...])
        if len(ends) != 2 or not 0 < ends[0] < ends[1] < math.inf:
            raise InputError(f"the range of {name} is {list(ends)}; use [low, high] with 0 < low < high (log scale)")
        with_options(settings, **{name: ends[1]})  # raises now for an end that the algorithm does not accept
    return {name: tuple(map(float, ends)) for name, ends in spaces.items()}


def _ask(before: Any, space: dict, batch: int, seed: int) -> list[dict[str, float]]:
    """The options of the next batch, drawn from the trials before it."""
    import optuna

    own = int(np.random.SeedSequence([seed, len(before.trials)]).generate_state(1)[0])
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=own, **SAMPLER), direction="maximize")
    study.add_trials(before.trials)
    return [study.ask(space).params for _ in range(batch)]
