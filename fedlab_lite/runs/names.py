"""What a run is called: the name says all that decides its numbers, and depends on nothing else."""

import hashlib
import json

from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.engine import training
from fedlab_lite.nn import MODELS
from fedlab_lite.runs.settings import Settings


def versions(settings: Settings) -> dict[str, int]:
    """The numerics versions that a run's numbers depend on; a higher version renames the runs that depend on it.

    `tests/runs/test_numerics.py` compares the source behind each version with a recorded hash.
    """
    family, algorithm = getattr(MODELS[settings.model][0], "version", 1), ALGORITHMS[settings.algorithm]
    joins = settings.unseen_clients and algorithm.join_version > 1
    return {"engine": training.ENGINE, "algorithm": algorithm.version, "family": family} | (
        {"join": algorithm.join_version} if joins else {}
    )


def _hashed(canonical: str, versions: dict[str, int], seed: int) -> str:
    return hashlib.sha256(json.dumps([canonical, versions, seed], sort_keys=True).encode()).hexdigest()[:32]


def settings_name(settings: Settings, seed: int) -> str:
    """The first part of a run's name, without the data's hash."""
    return _hashed(settings.of_seed(seed).canonical(), versions(settings), seed)


def name_here(settings: str, seed: int) -> str:
    """The first part of the name that this version gives a run whose settings are told as `canonical` writes them."""
    values = json.loads(settings) | {"dataset": Settings.dataset}  # this machine may not have the run's data
    return _hashed(settings, versions(Settings(**values)), seed)


def run_name(settings: Settings, seed: int, fingerprint: str) -> str:
    """The name of one seed's run: a hash of non-default settings, numerics versions and seed; then the data's hash."""
    return f"{settings_name(settings, seed)}-{fingerprint[:16]}"
