"""Federated learning with deep equilibrium models, personalisation and decentralised ADMM.

Everything that a notebook needs is here, `import fedlab_lite as fl`, or in one of the rooms: `fl.data`, `fl.deq`,
`fl.nn`, `fl.engine`, `fl.algorithms`, `fl.runs`, `fl.analysis`, `fl.plots` and `fl.papers`. Names are loaded when they
are first used. Importing the package changes nothing in JAX; `fl.setup()` does, and says what.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = ("algorithms", "analysis", "data", "deq", "engine", "nn", "papers", "plots", "runs", "util")
_NAMES = {  # public name: the room that has it
    **dict.fromkeys(("Algorithm", "Batch", "Channel", "ClientData", "Graph", "History", "Problem"), "engine"),
    **dict.fromkeys(("RoundContext", "Task", "evaluate", "load", "make_graph", "message_bytes", "save"), "engine"),
    **dict.fromkeys(("setup", "train"), "engine"),
    **dict.fromkeys(("Settings", "build_problem", "check_parameters", "final_state", "run", "run_all"), "runs"),
    **dict.fromkeys(("Model", "count_params", "make_model"), "nn"),
    **dict.fromkeys(("Federated", "federated"), "data"),
    **{"InputError": "util", "equilibrium": "deq", "make_algorithm": "algorithms"},
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
