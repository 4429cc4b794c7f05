"""DFedAvgM: Sun et al., "Decentralized Federated Averaging", 2022, as FedF-ADMM's Sec. VI-B3 compares with it."""

from dataclasses import dataclass

from fedlab_lite.algorithms.dec_fedavg import DecFedAvg
from fedlab_lite.util.fields import ranged


@dataclass(frozen=True)
class DFedAvgM(DecFedAvg):
    """DecFedAvg with a heavy ball in the local update: y^{k+1} = y^k - eta g(y^k) + epsilon (y^k - y^{k-1}).

    It starts each round from rest. Averaging is eq. (21)'s; the original's has doubly stochastic weights instead.
    """

    momentum: float | None = ranged(0.9, 0)  # epsilon
