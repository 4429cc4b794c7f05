"""One file an algorithm. `ALGORITHMS` is the register: a new algorithm adds its line here."""

from dataclasses import fields

from fedlab_lite.algorithms.base import Algorithm
from fedlab_lite.algorithms.cmfd import CMFD
from fedlab_lite.algorithms.dec_fedavg import DecFedAvg
from fedlab_lite.algorithms.dec_fedprox import DecFedProx
from fedlab_lite.algorithms.dfedadmm import DFedADMM
from fedlab_lite.algorithms.dfedavgm import DFedAvgM
from fedlab_lite.algorithms.ditto import Ditto
from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.algorithms.fedavg_ft import FedAvgFT
from fedlab_lite.algorithms.fedeq import FeDEQ
from fedlab_lite.algorithms.fedf_admm import FedFADMM
from fedlab_lite.algorithms.fedper import FedPer
from fedlab_lite.algorithms.fedrep import FedRep
from fedlab_lite.algorithms.knn_per import KNNPer
from fedlab_lite.algorithms.local import Local
from fedlab_lite.errors import InputError, choose

ALGORITHMS: dict[str, type[Algorithm]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedavg_ft": FedAvgFT,
    "ditto": Ditto,
    "fedper": FedPer,
    "fedrep": FedRep,
    "knn_per": KNNPer,
    "fedeq": FeDEQ,
    "dec_fedavg": DecFedAvg,
    "dec_fedprox": DecFedProx,
    "dfedavgm": DFedAvgM,
    "dfedadmm": DFedADMM,
    "cmfd": CMFD,
    "fedf_admm": FedFADMM,
}


def algorithm_options(name: str) -> dict[str, type]:
    """The hyper-parameters of an algorithm and their types."""
    choose("algorithm", name, ALGORITHMS)
    return {field.name: field.type for field in fields(ALGORITHMS[name])}


def make_algorithm(name: str, **options) -> Algorithm:
    """The algorithm `name` with these hyper-parameters.

    Raises `InputError` for an unknown name or option, a value of the wrong type, or one that is out of range.

    >>> make_algorithm("fedavg", lr=0.1).lr
    0.1
    """
    types = algorithm_options(name)
    for option, value in options.items():
        choose(f"option of algorithm {name}", option, types)
        kinds = (int, float) if types[option] is float else (types[option],)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InputError(
                f"{option} of algorithm {name} is a {types[option].__name__}, got {value!r} ({type(value).__name__})"
            )
        if isinstance(value, int | float) and value < 0:
            raise InputError(f"{option} of algorithm {name} cannot be negative, got {value}")
    if options.get("batch_size", 1) == 0:
        raise InputError(f"batch_size of algorithm {name} must be at least 1")
    return ALGORITHMS[name](**{option: types[option](value) for option, value in options.items()})
