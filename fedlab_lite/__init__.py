"""Federated learning with deep equilibrium models, personalisation and decentralised ADMM.

Everything that a notebook needs is here, `import fedlab_lite as fl`, or in one of the rooms: `fl.data`, `fl.deq`,
`fl.nn`, `fl.engine`, `fl.algorithms`, `fl.runs`, `fl.analysis`, `fl.plots` and `fl.papers`. Names are loaded when they
are first used. Importing the package changes nothing in JAX; `fl.setup()` does, and says what.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = ("algorithms", "analysis", "data", "deq", "engine", "nn", "papers", "plots", "runs", "util")
_NAMES = {  # public name: the module that has it
    "Algorithm": "engine",
    "Batch": "engine",
    "Channel": "engine",
    "ClientData": "engine",
    "Federated": "data",
    "Graph": "engine",
    "History": "engine",
    "InputError": "util",
    "Model": "nn",
    "Problem": "engine",
    "RoundContext": "engine",
    "Settings": "runs",
    "Task": "engine",
    "build_problem": "runs",
    "check_parameters": "runs",
    "count_params": "nn",
    "equilibrium": "deq",
    "evaluate": "engine",
    "federated": "data",
    "final_state": "runs",
    "make_algorithm": "algorithms",
    "make_graph": "engine",
    "make_model": "nn",
    "message_bytes": "engine",
    "run": "runs",
    "run_all": "runs",
    "setup": "engine",
    "train": "engine",
}
_MODULES = {"course": "papers.course", "verdicts": "papers.verdicts"}  # rooms of one file, for notebooks alone

__all__ = [*_ROOMS, *_NAMES, *_MODULES]


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first used."""
    if name in _ROOMS or name in _MODULES:
        return importlib.import_module(f"fedlab_lite.{_MODULES.get(name, name)}")
    if name in _NAMES:
        value = getattr(importlib.import_module(f"fedlab_lite.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    from fedlab_lite.util.errors import did_you_mean

    hint = did_you_mean(name, __all__) or "; dir(fedlab_lite) lists the public names"
    for room in () if name.startswith("_") else _ROOMS:  # a name such as FedAvg, which is public in its room
        if hasattr(importlib.import_module(f"fedlab_lite.{room}"), name):
            hint = f"; it is fedlab_lite.{room}.{name}"
            break
    raise AttributeError(f"fedlab_lite has no public name {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
