"""The algorithms, with one file per algorithm.

`ALGORITHMS` is the register: a new algorithm adds its line there.
"""

import inspect
import re
from dataclasses import fields, is_dataclass
from typing import Any

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
from fedlab_lite.algorithms.parts import fedopt
from fedlab_lite.engine import Algorithm, optimizers_of
from fedlab_lite.util import choose
from fedlab_lite.util.fields import Allowed, checked, rules_of

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


def algorithm_options(name: str) -> dict[str, Allowed]:
    """The hyper-parameters of an algorithm in settings, all but its optimisers, and what each may be."""
    choose("algorithm", name, ALGORITHMS)
    optimizers = optimizers_of(ALGORITHMS[name])
    return {option: allowed for option, allowed in rules_of(ALGORITHMS[name]).items() if option not in optimizers}


def algorithm_defaults(name: str) -> dict[str, Any]:
    """The default values of an algorithm's hyper-parameters."""
    options = algorithm_options(name)
    return {field.name: field.default for field in fields(ALGORITHMS[name]) if field.name in options}


def option_words(record: type) -> dict[str, str]:
    """What each hyper-parameter of an algorithm, or field of another dataclass, is: the comments in its source.

    >>> option_words(FeDEQ)["rho"], option_words(FeDEQ)["batch_size"]
    ('rho, penalty on theta_i - theta', 'rows per local step')
    """
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if is_dataclass(base):
            found |= dict(re.findall(r"^    (\w+): (?!ClassVar).+?  # (.+)$", inspect.getsource(base), re.MULTILINE))
    return {field.name: found.get(field.name, "") for field in fields(record)}


def make_algorithm(name: str, **options) -> Algorithm:
    """The algorithm `name` with these hyper-parameters, optimisers of optax included.

    Raises `InputError` for an unknown name or option, a value of the wrong type, or one that is out of range.

    >>> make_algorithm("fedavg", lr=0.1).lr
    0.1
    """
    choose("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name](**checked(f"algorithm {name}", options, rules_of(ALGORITHMS[name])))
