"""Tuning: Optuna searches step sizes and penalties; a batch of trials is one program, and every trial is kept.

A journal, `<cache>/tuning/<name>.log`, has the finished trials of a search. Its name is made from what decides them.
Batch k is drawn only from the trials of the batches before it, with a seed of its own. So an interrupted search, or one
that is extended later, continues with the trials that it would have had anyway.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from fedlab_lite.algorithms import algorithm_options
from fedlab_lite.engine import History
from fedlab_lite.runs import runner
from fedlab_lite.runs.settings import Settings
from fedlab_lite.util import CorruptFileError, InputError, MissingDataError, OutputError, choose, files
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
) -> optuna.Study:
    """Search options of the algorithm for the largest `score`, by log-uniform draws and then Optuna's TPE.

    TPE begins after ten trials. Trials are scored on rows held out of the training rows, see `held_out`. Test rows have
    no influence.

    Args:
      settings: the run; its values of the searched options are ignored.
      spaces: option -> (low, high), both positive; options that are floats.
      num_trials: trials in all, including those of earlier calls, so the same call again trains nothing.
      batch: trials that are drawn before any of their results is known.
      metric: one that a judgement on held-out rows has: the task's headline ('accuracy') or 'loss'.
      seed: draws the trials; the settings have the seeds of the runs.
      progress: as in `runs.run_all`, with one bar per batch.

    Returns: a study in memory with `num_trials` trials: `best_params`, `best_value`, `trials`. The user attributes of a
      trial are 'test', the same score on the test rows, for the report only, and 'diverged', whether one of its seeds
      diverged. The histories are those of `run_all` with `with_options(held_out(settings), **trial.params)`.

    Raises: `InputError`, `CorruptFileError` (a damaged journal), and as `run_all`.

    Source: Akiba et al., "Optuna", KDD 2019; FedF-ADMM tunes every algorithm with it (Sec. VI).

    Example:
      >>> tiny = Settings(num_clients=4, num_rounds=1, model_options={"width": 8})
      >>> study = tune(tiny, {"lr": (0.01, 0.1)}, num_trials=2, batch=2)
      >>> len(study.trials), 0.01 <= study.best_params["lr"] <= 0.1
      (2, True)
    """
    for name, value, least in (("num_trials", num_trials, 1), ("batch", batch, 1), ("seed", seed, 0)):
        check_value(name, value, int, Range(least))
    settings = held_out(settings)
    space = _distributions(settings, spaces)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = _open(_file(settings, space, batch, metric, seed), space)
    while (done := len(journal.get_trials(deepcopy=False))) < num_trials:
        first = done - done % batch
        asked = _ask(journal.trials[:first], space, batch, seed)[: num_trials - first]
        trials = dict(enumerate(asked, first))
        runs = {number: with_options(settings, **params) for number, params in trials.items()}
        for number, history in runner.run_all(runs, progress=progress).items():
            if number == len(journal.get_trials(deepcopy=False)):  # else it is there already
                about = {"diverged": any(history.diverged), "test": score(history, metric)}
                value = score(history, f"{metric}_validation")
                journal.add_trial(
                    create_trial(params=trials[number], distributions=space, value=value, user_attrs=about)
                )
    return _study(journal.trials[:num_trials])


def _distributions(settings: Settings, spaces: Spaces) -> dict[str, FloatDistribution]:
    options = algorithm_options(settings.algorithm)
    floats = [name for name, allowed in options.items() if allowed.hint in (float, float | None)]
    if not spaces:
        raise InputError(f"nothing to search; {settings.algorithm} has the options {', '.join(floats)}")
    for name, ends in spaces.items():
        choose(f"float option of algorithm {settings.algorithm}", name, floats)
        check_value(f"the range of {name}", ends, tuple[float, ...])
        if len(ends) != 2 or not 0 < ends[0] < ends[1] < math.inf:
            raise InputError(
                f"the range of {name} is {list(ends)}; give [low, high] with 0 < low < high, the search is logarithmic"
            )
        with_options(settings, **{name: ends[1]})  # raises now for an end that the algorithm does not accept
    return {name: FloatDistribution(*map(float, spaces[name]), log=True) for name in sorted(spaces)}


def _study(trials: Sequence[FrozenTrial], sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.add_trials(trials)
    return study


def _ask(before: Sequence[FrozenTrial], space: dict, batch: int, seed: int) -> list[dict[str, float]]:
    """The options of the next batch, drawn from the trials before it."""
    own = int(np.random.SeedSequence([seed, len(before)]).generate_state(1)[0])
    study = _study(before, optuna.samplers.TPESampler(seed=own, **SAMPLER))
    return [study.ask(space).params for _ in range(batch)]


def _file(settings: Settings, space: Mapping[str, FloatDistribution], batch: int, metric: str, seed: int) -> Path:
    """The path of a search's journal.

    The run, its data and code (as for runs), the ranges and the sampler decide its name.
    """
    plain = with_options(settings, **{name: ends.low for name, ends in space.items()})
    try:
        data = runner.data_fingerprint(runner.build_problem(plain))
    except MissingDataError:  # computed on a machine with the data: its runs are in the store
        data = ""
    ranges = {name: [ends.low, ends.high] for name, ends in space.items()}
    names = [runner.run_name(plain, run_seed, data) for run_seed in plain.seeds]
    text = json.dumps([names, ranges, batch, metric, seed, SAMPLER])
    return files.cache_dir() / "tuning" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.log"


def _open(file: Path, space: dict) -> optuna.Study:
    """Open the journal, or begin a new one; a last line that was only partly written is cut off."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = file.read_bytes() if file.exists() else b""
        torn = content.rpartition(b"\n")[2]
        if torn and torn.startswith(b'{"op_code":'[: len(torn)]):
            content = content.removesuffix(torn)
            os.truncate(file, len(content))
        for line in content.splitlines():
            json.loads(line)["op_code"]
        storage = JournalStorage(JournalFileBackend(str(file)))
        make = optuna.load_study if content else partial(optuna.create_study, direction="maximize", load_if_exists=True)
        study = make(storage=storage, study_name="trials")
        if any(t.state != TrialState.COMPLETE or t.distributions != space for t in study.get_trials(deepcopy=False)):
            raise ValueError("trials of another search")
    except OSError as error:
        raise OutputError(f"cannot write {file}: {error.strerror or error}; FEDLAB_CACHE moves it") from error
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise CorruptFileError(
            f"{file} is corrupt ({type(error).__name__}: {error}). Remove it and search again: the runs behind it are "
            "in the run store, so what was finished is not trained again"
        ) from error
    return study
