"""DFedAvgM: Sun et al., "Decentralized Federated Averaging", 2022, as FedF-ADMM's Sec. VI-B3 uses it for comparison."""

from dataclasses import dataclass

from fedlab_lite.algorithms.dec_fedavg import DecFedAvg
from fedlab_lite.algorithms.parts import Decentralised
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class DFedAvgM(Decentralised):
    """DecFedAvg with heavy-ball momentum in the local update: y^{k+1} = y^k - eta g(y^k) + epsilon (y^k - y^{k-1}).

    Momentum starts at zero in each round. Averaging is w_i <- (1 - beta) w_i + beta M_i[w_j], eq. (21) of FedF-ADMM.
    The original paper has doubly stochastic weights instead.
    """

    momentum: float | None = ranged(0.9, 0)  # epsilon
    beta: float = ranged(0.5, 0, 1)  # beta, averaging rate; 1 would oscillate on an even ring

    round = DecFedAvg.round
