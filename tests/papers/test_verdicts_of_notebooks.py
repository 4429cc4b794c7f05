"""Nothing is confirmed by accident: every training notebook, with runs that diverged and with runs of no rounds.

The notebooks' cells run here as they stand, but nothing is trained: `run_all` gives made-up histories. None may raise,
and each must say `undecided`. What each drew has every marker and line in a legend.
"""

import json
import math
from dataclasses import replace
from functools import lru_cache

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import unlabelled

import fedlab_lite
from fedlab_lite import papers, runs
from fedlab_lite.engine import Algorithm, History, Problem, evaluate, majority_baseline, message_bytes
from fedlab_lite.nn import count_params
from fedlab_lite.papers import notebooks, presets
from fedlab_lite.plots import style
from fedlab_lite.runs import Settings, build_problem, runner

mpl.use("agg")
TRAINING = [item for item in presets.items() if presets.settings(*item, "quick")]


def names(problem: Problem, algorithm: Algorithm) -> set[str]:
    """The metrics that a run would have, by tracing, once for all that differ in numbers; nothing is compiled."""
    leaves, structure = jax.tree.flatten((problem, algorithm))
    return _traced_names(structure, tuple(map(jax.typeof, leaves)))


@lru_cache
def _traced_names(structure, shapes) -> set[str]:
    problem, algorithm = jax.tree.unflatten(structure, shapes)

    def judged(problem, algorithm):
        key = jax.random.key(0)
        state = algorithm.init(problem, key)
        models = {"": algorithm.models(problem, state, key)} | algorithm.other_models(problem, state, key)
        found = {name: evaluate(problem, *parts) for name, parts in models.items()}
        return found, algorithm.monitor(problem, state)

    found, monitored = jax.eval_shape(judged, problem, algorithm)
    goal = problem.task.headline
    result = {*found[""], f"{goal}_pooled", f"{goal}_gap", *monitored} - {"counted"}
    others = {*found} - {""} | (
        {"unseen", *(f"unseen_{name}" for name in found if name)} if problem.newcomers else set()
    )
    others |= {"validation"} if problem.validation else set()
    others |= {"training"} if problem.judge_training else set()
    return result | {f"{metric}_{which}" for which in others for metric in (goal, "loss")}


def made_up(settings: Settings, value: float, num_rounds: int) -> History:
    problem, algorithm = build_problem(settings.of_seed(0)), runner.algorithm_of(settings)
    rounds = np.array([0, num_rounds] if num_rounds else [0])
    shape = (len(settings.seeds), len(rounds))
    params = jax.eval_shape(problem.model.init, jax.random.key(0))
    constant, labels = majority_baseline(problem)
    return History(
        seeds=settings.seeds,
        num_rounds=num_rounds,
        rounds=rounds,
        metrics={name: np.full(shape, value, np.float32) for name in names(problem, algorithm)},
        client_curves=np.full((*shape, problem.num_clients), value, np.float32),
        diverged=(not math.isfinite(value),) * len(settings.seeds),
        message_bytes=message_bytes(problem, algorithm),
        num_params={part: count_params(tree) for part, tree in params.items()},
        seconds=1.0,
        data_source=problem.data.source,
        data_fingerprint="0" * 16,
        device="1 x abacus",
        versions={"jax": "1", "fedlab_lite": "0"},
        about={what: getattr(settings, what) for what in ("dataset", "model", "algorithm")},
        constant=constant,
        test_labels=labels,
        settings=settings,
    )


def no_training(value: float, num_rounds: int, numbers: dict) -> dict:
    """`run_all`, `run`, `final_state` and `measured`, whose results have this value everywhere, after so many rounds.

    `numbers`: what was measured; final states are alike for all seeds and all values.
    """
    cache = {}

    def run_all(asked, **options):
        return {name: cache.setdefault(each, made_up(each, value, num_rounds)) for name, each in asked.items()}

    def final_state(settings, **options):
        problem = build_problem(settings)
        algorithm = runner.algorithm_of(settings)
        state = jax.eval_shape(algorithm.init, problem, jax.random.key(0))
        seeds = len(settings.seeds)

        def leaf(shape):
            if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
                return jax.random.split(jax.random.key(0), (seeds, *shape.shape))
            fill = math.nan if np.issubdtype(shape.dtype, np.inexact) else 0
            return jax.numpy.full((seeds, *shape.shape), fill, shape.dtype)

        return problem, jax.tree.map(leaf, state)

    def measured(settings, what, measure):
        alone = replace(settings, seeds=(0,))
        if (alone, what) not in numbers:
            problem, state = final_state(alone)
            numbers[alone, what] = measure(problem, jax.tree.map(lambda leaf: leaf[0], state))
        return jax.tree.map(lambda each: np.stack([each] * len(settings.seeds)), numbers[alone, what])

    return {
        "run_all": run_all,
        "run": lambda settings, **options: run_all({"": settings})[""],
        "final_state": final_state,
        "measured": measured,
    }


@pytest.mark.slow
@pytest.mark.parametrize("item", TRAINING, ids=str)
def test_what_was_not_trained_confirms_nothing(item, monkeypatch):
    """Runs that diverged, and runs of no rounds; in one test, since both need the same traced programs."""
    monkeypatch.setattr(plt, "show", lambda: None)
    cells, numbers = json.loads(notebooks.path(item).read_text())["cells"], {}
    for value, num_rounds in ((math.nan, 10), (0.1, 0)):
        saved, drawn = [], []

        def save_figure(fig, *args, saved=saved, drawn=drawn, **options):
            saved.append(options)
            drawn.append(fig)

        monkeypatch.setattr(papers, "save_figure", save_figure)
        for module in (fedlab_lite, runs, runner):  # wherever a notebook takes them from
            for name, function in no_training(value, num_rounds, numbers).items():
                monkeypatch.setattr(module, name, function, raising=module is not fedlab_lite)
        scope = {"__name__": "__main__"}
        try:
            for cell in cells:
                if cell["cell_type"] == "code":
                    source = notebooks.source(cell).replace(": bool = False", ": bool = True")  # what is optional, too
                    exec(compile(source, f"{item}", "exec"), scope)
                    if saved:
                        break
            (options,) = saved
            assert options["verdict"].outcome == "undecided", (value, options["verdict"].reason)
            assert options["verdict"].reason
            assert unlabelled(drawn[0]) == []
            assert drawn[0].get_figwidth() <= style.WIDTH
        finally:
            plt.close("all")
