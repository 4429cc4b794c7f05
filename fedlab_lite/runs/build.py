"""Build a run's algorithm, and its `Problem` of data, network and graph, from its settings."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.data import Federated, which
from fedlab_lite.data import federated as federated_data
from fedlab_lite.engine import Algorithm, History, Problem, fusion_weights, make_graph
from fedlab_lite.nn import Model, make_model, models_for
from fedlab_lite.runs.settings import Settings
from fedlab_lite.util import InputError, files


@lru_cache(maxsize=4)  # a figure's seeds may have their own data
def _data(data_dir: Path, stamp: object, dataset: str, **options):
    return federated_data(dataset, **options)


def partition_of(settings: Settings) -> dict[str, Any]:
    """The arguments of `federated` in the settings, without the data set."""
    names = ("partition", "num_clients", "classes_per_client", "alpha", "train_size", "test_size", "common_test")
    names += ("shared_size", "shared_alpha")
    return {name: getattr(settings, name) for name in names} | {"seed": settings.data_seed}


def algorithm_of(settings: Settings) -> Algorithm:
    """The algorithm of a run, with its hyper-parameters."""
    return make_algorithm(settings.algorithm, **dict(settings.algorithm_options))


def moment_of(history: History) -> str:
    """The moment of a round at which a run's clients are judged, see `Algorithm.moment`; '' without settings.

    Example:
      >>> from fedlab_lite.runs import run
      >>> base = {"dataset": "digits", "partition": "iid", "num_clients": 4, "train_size": 80, "num_rounds": 1}
      >>> history = run(Settings(**base, algorithm="dec_fedavg", graph="ring", model_options={"width": 8}))
      >>> moment_of(history), sorted(name for name in history.metrics if name.startswith("accuracy"))
      ('mixed', ['accuracy', 'accuracy_gap', 'accuracy_gap_trained', 'accuracy_pooled', 'accuracy_trained'])
    """
    return "" if history.settings is None else algorithm_of(history.settings).moment


def metric_at(history: History, metric: str, moment: str) -> str:
    """The name of a run's metric at a moment of a round: without a suffix where the run reports that moment itself.

    Args:
      moment: 'mixed' or 'trained'; '': the run's own.
    """
    return metric if not moment or moment_of(history) in ("", moment) else f"{metric}_{moment}"


def build_problem(settings: Settings, data: Federated | None = None) -> Problem:
    """The problem of a run, with the data (or with others, `data`) and the model of its settings.

    Raises: `InputError`, also where several seeds have their own data; `MissingDataError` for real data that are not
      on this machine.

    Example:
      >>> problem = build_problem(Settings(dataset="digits", partition="iid", num_clients=4, train_size=80))
      >>> problem.num_clients, problem.model.name, problem.data.source
      (4, 'mlp', 'embedded digits')
    """
    if settings.data_per_seed and len(settings.seeds) > 1:
        raise InputError("every seed has its own data (data_per_seed); use one seed, or settings.of_seed(seed)")
    settings = settings.of_seed(settings.seeds[0])
    where = files.data_dir(), which.stamp(settings.dataset), settings.dataset
    federated = _data(*where, **partition_of(settings)) if data is None else data
    model = _model(settings, federated)
    if settings.budgets:
        _check_budgets(settings, model)
        federated = replace(federated, budget=np.array(settings.budgets, np.int32))
    seen, newcomers, validation = federated, None, None
    if settings.unseen_clients:
        seen, newcomers = federated.split(settings.unseen_clients, settings.data_seed)
    if settings.validation_size:
        seen, validation = seen.hold_out(settings.validation_size, settings.data_seed)
    iterations = np.ones_like(seen.size) if seen.budget is None else seen.budget
    weight = fusion_weights(settings.fusion, seen.size, iterations)
    graph = None
    if settings.graph:
        edges = {name: getattr(settings, name) for name in ("num_edges", "edge_probability")}
        edges["seed"] = settings.graph_seed
        graph = make_graph(settings.graph, seen.num_clients, **edges)
    parts = {"newcomers": newcomers, "validation": validation, "graph": graph, "weight": weight}
    parts |= {"judge_training": settings.judge_training}
    return Problem(seen, model, channel=settings.channel(), **parts)


def _model(settings: Settings, federated: Federated) -> Model:
    """The network of the settings for these data; the error for a network that does not fit names those that do."""
    sequences = federated.task == "next_character"
    why = f"{settings.model} gives one answer per row, but {settings.dataset} has one label per character"
    try:
        options = dict(settings.model_options)
        model = make_model(settings.model, federated.input_shape, federated.num_classes, **options)
        if model.per_position == sequences:
            return model
    except InputError as error:
        why = str(error)
    others = models_for(federated.input_shape, federated.num_classes, sequences)
    if settings.model in others:  # it fits with other options
        raise InputError(why)
    raise InputError(f"{why}. Networks that fit {settings.dataset}, rows {federated.input_shape}: {', '.join(others)}")


def _check_budgets(settings: Settings, model: Model) -> None:
    if model.solve is None:
        raise InputError(f"budgets are for equilibrium models, but {settings.model} has no solver; leave budgets out")
    if max(settings.budgets) > model.solve.max_iter:
        raise InputError(
            f"a client's budget is {max(settings.budgets)} iterations, but {settings.model} makes at most "
            f"{model.solve.max_iter}; raise the model's max_iter or lower the budget"
        )
    if settings.fusion.startswith("iterations") and model.solve.tol > 0:
        raise InputError(
            f"fusion {settings.fusion!r} weighs clients by their iterations, but with tol = {model.solve.tol} "
            "samples stop before their budget is used up; set the model's tol to 0"
        )


def data_fingerprint(problem: Problem) -> str:
    """A hash of the rows that clients train on and are judged with, including newcomers and held-out rows."""
    parts = [part.fingerprint() for part in (problem.data, problem.newcomers, problem.validation) if part is not None]
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()
