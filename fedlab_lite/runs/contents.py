"""What the files of runs must hold. A checksum says that a file is whole; this says that this version can read it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedlab_lite.engine import Progress
from fedlab_lite.util import InputError
from fedlab_lite.util.forms import check_form

_HISTORY: dict[str, Any] = {  # of what a finished run says beside its arrays
    **{"data_source": str, "data_fingerprint": str, "device": str, "versions": {"": str}, "about": {"": str}},
    **{"message_bytes": {"": int}, "num_params": {"": int}, "seconds": float | int, "num_rounds": int},
    **{"diverged": [bool], "seeds": [int]},
}
_LATER: dict[str, Any] = {  # what earlier versions did not write
    **{"headline": str, "constant": float | int, "test_labels": {"": int}, "trajectories_at_once": int},
    **{"own_constant": float | int, "precision": str, "executor": str, "clients_at_once": int | None},
}
_PROGRESS: dict[str, Any] = {
    **{"next": int, "seconds": float | int, "finite": bool, "made": dict, "trajectories_at_once": int}
}
META = (*_HISTORY, *_LATER)  # fields of a history that are no arrays


def metrics_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The metrics in a run's arrays, by name.

    An earlier version called FeDEQ's 'accuracy_trained' and 'loss_trained' 'accuracy_own' and 'loss_own'.

    >>> list(metrics_of({"metric accuracy": 1, "metric accuracy_own": 1, "rounds": 1}))
    ['accuracy', 'accuracy_trained']
    """
    names = {key: key.removeprefix("metric ") for key in arrays if key.startswith("metric ")}
    old = {"accuracy_own": "accuracy_trained", "loss_own": "loss_trained"}
    return {old.get(name, name): arrays[key] for key, name in names.items()}


def check_history(meta: dict[str, Any], rounds: np.ndarray, metrics: dict[str, np.ndarray], clients: Any) -> None:
    """Raise `InputError` unless these are the parts of a history."""
    check_form("its description", meta, _HISTORY | {name: form for name, form in _LATER.items() if name in meta})
    _check_curves((len(meta["seeds"]),), rounds, metrics, clients)
    if len(meta["diverged"]) != len(meta["seeds"]) or meta.get("headline", "accuracy") not in metrics:
        raise InputError("its curves are not those of its seeds and its headline")


def check_progress(found: Progress) -> None:
    """Raise `InputError` unless the fields of a checkpoint's progress have their types and shapes."""
    check_form("its progress", vars(found), _PROGRESS)
    if found.client_curves is not None:
        _check_curves((), found.rounds, found.metrics, found.client_curves)


def _check_curves(seeds: tuple[int, ...], rounds: np.ndarray, metrics: dict[str, np.ndarray], clients: Any) -> None:
    """Raise `InputError` unless each evaluation has a number: metrics `[*seeds, E]`, clients `[*seeds, E, N]`."""
    shape = (*seeds, *rounds.shape)
    right = [clients.shape[:-1] == shape, *(curve.shape == shape for curve in metrics.values())]
    kinds = {array.dtype.kind for array in (clients, *metrics.values())}
    if rounds.ndim != 1 or rounds.dtype.kind != "i" or kinds != {"f"} or not all(right):
        raise InputError("its curves do not have one number for each of its evaluations")
