"""tune: the same trials whatever happens in between, none trained twice, bad input named."""

import math
from dataclasses import replace

import pytest
from helpers import blobs

from fedlab_lite.papers import presets
from fedlab_lite.runs import Settings, held_out, run_all, runner, score, tune, with_options
from fedlab_lite.util import InputError, MissingDataError

FEDAVG = Settings(num_clients=3, num_rounds=1, algorithm_options={"epochs": 1, "lr": 0.1})
SPACES = {"lr": (1e-3, 1.0)}
TRIALS = 14  # in batches of four: the last two are TPE's
DEC = Settings(num_clients=3, num_rounds=1, graph="ring", algorithm="fedf_admm")
PAPER = presets.item("fedf_admm", "fig08_tuning")["spaces"]


class FakeHistory:
    """Best at lr = 0.1, and no computing."""

    diverged = (False,)

    def __init__(self, settings):
        self.lr = dict(settings.algorithm_options)["lr"]

    def final(self, metric):
        return [-abs(math.log10(self.lr) + 1) - (metric == "accuracy")]  # worse on the test rows


class Runs(list):
    """Stands in for `run_all`: every batch it got, what it stored, and a number of batches after which it is killed."""

    def __init__(self, stored=(), killed_after=math.inf):
        self.before, self.stored = set(stored), set(stored)
        self.killed_after = killed_after

    def __call__(self, runs, **options):
        if len(self) == self.killed_after:
            raise KeyboardInterrupt
        self.append(list(runs.values()))
        self.stored |= set(runs.values())
        return {name: FakeHistory(settings) for name, settings in runs.items()}

    def trained(self):
        return len(self.stored - self.before)


@pytest.fixture(autouse=True)
def small_problem(monkeypatch):
    monkeypatch.setattr(runner, "build_problem", problem_of)


def problem_of(settings, seed=0):
    """Three clients, with validation rows where the settings ask for some."""
    problem = blobs(3, seed=seed)
    if not settings.validation_size:
        return problem
    data, validation = problem.data.hold_out(settings.validation_size)
    return replace(problem, data=data, validation=validation)


def fake(monkeypatch, **options):
    runs = Runs(**options)
    monkeypatch.setattr(runner, "run_all", runs)
    return runs


def found(study):
    return [(trial.number, trial.params, trial.value, trial.user_attrs) for trial in study.trials]


def search(num_trials=TRIALS, **options):
    return tune(FEDAVG, SPACES, num_trials=num_trials, **{"batch": 4, "seed": 3} | options)


@pytest.fixture
def undisturbed(monkeypatch):
    """The trials of a whole search."""
    with monkeypatch.context() as patch:
        fake(patch)
        return found(search())


# --- what a search is -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_runs_are_scored_stored_and_not_trained_again(monkeypatch):
    study = tune(FEDAVG, {"lr": (1e-3, 1e-1)}, num_trials=4, batch=2)
    histories = run_all({trial.number: with_options(held_out(FEDAVG), **trial.params) for trial in study.trials})
    assert [score(h, "accuracy_validation") for h in histories.values()] == [trial.value for trial in study.trials]
    assert study.best_value == max(trial.value for trial in study.trials)
    assert all(1e-3 <= trial.params["lr"] <= 1e-1 for trial in study.trials)
    reported = [{"diverged": False, "test": score(history)} for history in histories.values()]
    assert [trial.user_attrs for trial in study.trials] == reported
    monkeypatch.setenv("FEDLAB_STORED_ONLY", "1")
    assert found(tune(FEDAVG, {"lr": (1e-3, 1e-1)}, num_trials=4, batch=2)) == found(study)


@pytest.mark.slow
def test_test_rows_decide_nothing(monkeypatch):
    """With other test rows the same trials have the same values; only what is reported of them differs."""

    def spoiled(settings):
        problem = problem_of(settings)
        return replace(problem, data=replace(problem.data, test_y=1 - problem.data.test_y.clip(0, 1)))

    study = tune(FEDAVG, {"lr": (1e-2, 1e-1)}, num_trials=2, batch=2)
    monkeypatch.setattr(runner, "build_problem", spoiled)
    other = tune(FEDAVG, {"lr": (1e-2, 1e-1)}, num_trials=2, batch=2)
    assert [(t.params, t.value) for t in study.trials] == [(t.params, t.value) for t in other.trials]
    assert [t.user_attrs["test"] for t in study.trials] != [t.user_attrs["test"] for t in other.trials]


def test_a_diverging_trial_counts_as_nothing():
    study = tune(FEDAVG, {"lr": (9e29, 1e30)}, num_trials=2, batch=2)
    assert study.best_value == 0.0
    assert study.best_trial.user_attrs == {"diverged": True, "test": 0.0}


def test_the_search_goes_where_the_score_is_high(monkeypatch):
    runs = fake(monkeypatch)
    study = search(40)
    assert [len(batch) for batch in runs] == [4] * 10
    assert sum(trial.value for trial in study.trials[12:]) / 28 > -0.7  # of uniform draws it is -0.83
    assert abs(math.log10(study.best_params["lr"]) + 1) < 0.1


@pytest.mark.parametrize("algorithm", PAPER)
def test_the_papers_ranges_can_be_searched(monkeypatch, algorithm):
    fake(monkeypatch)
    (trial,) = tune(replace(DEC, algorithm=algorithm), PAPER[algorithm], num_trials=1).trials
    assert trial.params.keys() == PAPER[algorithm].keys()
    assert all(low <= trial.params[name] <= high for name, (low, high) in PAPER[algorithm].items())


def test_deterministic_by_seed(undisturbed, monkeypatch):
    fake(monkeypatch)
    assert found(search()) == undisturbed
    assert len({params["lr"] for _, params, *_ in undisturbed}) == TRIALS
    others = [found(search(seed=4)), found(search(batch=5))]
    assert undisturbed not in others
    assert others[0] != others[1]


def test_options_that_are_searched_do_not_name_the_search(monkeypatch):
    runs = fake(monkeypatch)
    search()
    tune(with_options(FEDAVG, lr=0.7), SPACES, num_trials=TRIALS, batch=4, seed=3)
    assert runs.trained() == TRIALS
    tune(with_options(FEDAVG, epochs=2), SPACES, num_trials=TRIALS, batch=4, seed=3)
    assert runs.trained() == 2 * TRIALS


# --- interruptions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_killed_while_training(undisturbed, monkeypatch, batches):
    killed = fake(monkeypatch, killed_after=batches)
    with pytest.raises(KeyboardInterrupt):
        search()
    runs = fake(monkeypatch, stored=killed.stored)
    assert found(search()) == undisturbed
    assert runs.trained() == TRIALS - 4 * batches


@pytest.mark.parametrize("first", [1, 4, 6, 13])
def test_asking_for_more_goes_on(undisturbed, monkeypatch, first):
    fake(monkeypatch)
    assert found(search(first)) == undisturbed[:first]
    assert found(search()) == undisturbed
    assert found(search(first)) == undisturbed[:first]  # what more there is stays out


def test_shown_where_the_data_are_not(monkeypatch):
    def missing(settings):
        raise MissingDataError("no data here")

    fake(monkeypatch)
    monkeypatch.setattr(runner, "build_problem", missing)
    assert len(search().trials) == TRIALS


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spaces", "options", "message"),
    [
        ({}, {}, "there are no options to search; fedf_admm has lr, momentum, .*, rho, nu, derivative_gain"),
        ({"eta": (0.1, 1.0)}, {}, "unknown float option of algorithm fedf_admm 'eta'"),
        ({"epochs": (1, 3)}, {}, "unknown float option .*'epochs'"),
        ({"lr": (0.1, 0.1)}, {}, r"range of lr is \[0.1, 0.1\]; use \[low, high\] with 0 < low < high"),
        ({"lr": (1.0, 0.1)}, {}, "0 < low < high"),
        ({"lr": (0.0, 0.1)}, {}, "0 < low < high"),
        ({"lr": (-1.0, 0.1)}, {}, "0 < low < high"),
        ({"lr": (0.1, math.inf)}, {}, "0 < low < high"),
        ({"lr": (math.nan, 0.1)}, {}, "0 < low < high"),
        ({"lr": (0.1,)}, {}, "0 < low < high"),
        ({"lr": 0.1}, {}, "range of lr must be of type"),
        ({"lr": ("a", "b")}, {}, "range of lr must be of type"),
        ({"nu": (0.1, 2.0)}, {}, "nu of algorithm fedf_admm must be .* 0 to 1"),
        ({"lr": (0.1, 1.0)}, {"num_trials": 0}, "num_trials must be of type int, at least 1, got 0"),
        ({"lr": (0.1, 1.0)}, {"num_trials": 2.5}, "num_trials must be of type int"),
        ({"lr": (0.1, 1.0)}, {"batch": 0}, "batch must be of type int, at least 1, got 0"),
        ({"lr": (0.1, 1.0)}, {"seed": -1}, "seed must be of type int, at least 0, got -1"),
        ({"lr": (0.1, 1.0)}, {"batch": 2, "metric": "acuracy"}, "no metric 'acuracy"),
        ({"lr": (0.1, 1.0)}, {"metric": "loss"}, "of a loss less is better"),
    ],
)
def test_bad_input(spaces, options, message):
    settings = FEDAVG if "metric" in options else DEC
    with pytest.raises(InputError, match=message):
        tune(settings, spaces, **{"num_trials": 2} | options)
