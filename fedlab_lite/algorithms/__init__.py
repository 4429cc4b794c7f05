"""One file an algorithm. `ALGORITHMS` is the register: a new algorithm adds its line here."""

import math
from dataclasses import fields
from typing import Any, get_args

from fedlab_lite.algorithms.cmfd import CMFD
from fedlab_lite.algorithms.dec_fedavg import DecFedAvg
from fedlab_lite.algorithms.dec_fedprox import DecFedProx
from fedlab_lite.algorithms.deprl import DePRL
from fedlab_lite.algorithms.dfedadmm import DFedADMM
from fedlab_lite.algorithms.dfedavgm import DFedAvgM
from fedlab_lite.algorithms.dispfl import DisPFL
from fedlab_lite.algorithms.ditto import Ditto
from fedlab_lite.algorithms.dpsgd import DPSGD
from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.algorithms.fedavg_ft import FedAvgFT
from fedlab_lite.algorithms.fedbabu import FedBABU
from fedlab_lite.algorithms.fedcr import FedCR
from fedlab_lite.algorithms.fedeq import FeDEQ, lagrangian_terms
from fedlab_lite.algorithms.fedf_admm import FedFADMM
from fedlab_lite.algorithms.fedpac import FedPAC
from fedlab_lite.algorithms.fedper import FedPer
from fedlab_lite.algorithms.fedreco import FedReCo
from fedlab_lite.algorithms.fedrep import FedRep
from fedlab_lite.algorithms.fedrod import FedRoD
from fedlab_lite.algorithms.knn_per import KNNPer
from fedlab_lite.algorithms.local import Local
from fedlab_lite.engine import Algorithm, is_optimizer
from fedlab_lite.util import InputError, choose

ALGORITHMS: dict[str, type[Algorithm]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedavg_ft": FedAvgFT,
    "ditto": Ditto,
    "fedper": FedPer,
    "fedrep": FedRep,
    "knn_per": KNNPer,
    "fedbabu": FedBABU,
    "fedpac": FedPAC,
    "fedcr": FedCR,
    "fedreco": FedReCo,
    "fedrod": FedRoD,
    "fedeq": FeDEQ,
    "dec_fedavg": DecFedAvg,
    "dec_fedprox": DecFedProx,
    "dfedavgm": DFedAvgM,
    "dfedadmm": DFedADMM,
    "cmfd": CMFD,
    "fedf_admm": FedFADMM,
    "dpsgd": DPSGD,
    "dispfl": DisPFL,
    "deprl": DePRL,
}


def algorithm_options(name: str) -> dict[str, type]:
    """The hyper-parameters of an algorithm that settings name, and their types: all but its optimisers."""
    choose("algorithm", name, ALGORITHMS)
    return {field.name: field.type for field in fields(ALGORITHMS[name]) if not is_optimizer(field)}


def algorithm_defaults(name: str) -> dict[str, Any]:
    """The values of an algorithm's hyper-parameters where nothing else is said."""
    return {field.name: field.default for field in fields(ALGORITHMS[name]) if not is_optimizer(field)}


def make_algorithm(name: str, **options) -> Algorithm:
    """The algorithm `name` with these hyper-parameters.

    Raises `InputError` for an unknown name or option, a value of the wrong type, or one that is out of range.

    >>> make_algorithm("fedavg", lr=0.1).lr
    0.1
    """
    types = algorithm_options(name)
    for option, value in options.items():
        choose(f"option of algorithm {name}", option, types)
        kinds = get_args(types[option]) or (types[option],)
        if isinstance(value, bool) or not isinstance(value, (*kinds, int) if float in kinds else kinds):
            words = " or None".join([kinds[0].__name__, *[""] * (len(kinds) - 1)])
            raise InputError(f"{option} of algorithm {name} is a {words}, got {value!r} ({type(value).__name__})")
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise InputError(f"{option} of algorithm {name} cannot be negative, infinite or NaN, got {value}")
    for option in ("batch_size", "clip"):
        if options.get(option) == 0:
            raise InputError(f"{option} of algorithm {name} must be positive, got 0")
    return ALGORITHMS[name](**{option: _number(types[option], value) for option, value in options.items()})


def _number(hint: Any, value: Any) -> Any:
    return float(value) if value is not None and float in (hint, *get_args(hint)) else value
