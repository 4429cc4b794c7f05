"""CMFD: Taya et al., "Decentralized and model-free federated learning: consensus-based distillation in function space".

2022, as FedF-ADMM's Sec. VI-B5 uses it for comparison. Where that paper leaves details open, CMFD's code decides.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax

from fedlab_lite.algorithms.parts import SHARES, Decentralised, check_shared_set, distill, distillation_round
from fedlab_lite.util.fields import one_of, ranged


@dataclass(frozen=True)
class CMFD(Decentralised):
    """Local SGD, then distillation towards the neighbours' mean output on the shared set D_s, eq. (23).

    Outputs are class probabilities with dropout off. Distillation is minibatch SGD on 1/2 mean ||f(x) - target||^2 with
    dropout on. Both are as in CMFD's code; eq. (23) is one step on a sum over D_s. `share` says what neighbours send:
    their outputs, or their params for the others to evaluate. The numbers are the same, the bytes differ (FedF-ADMM,
    Sec. IV-B).
    """

    rho: float = ranged(0.08, 0, above=True)  # rho (rho-hat in FedF-ADMM), step size of distillation
    distill_epochs: int = ranged(1, 0)  # passes over D_s
    distill_batch_size: int = ranged(100, 1)  # rows per step of distillation
    share: str = one_of("outputs", *SHARES)  # what crosses the network: 'outputs' on D_s, or 'params'

    output: ClassVar[str] = "probabilities"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "rho")
    check = check_shared_set
    round = distillation_round
    distill = distill  # eq. (12), (23)

    def targets(self, state: dict, outputs: jax.Array, mean: jax.Array) -> tuple[jax.Array, dict]:
        """The target of each device's distillation, `[N, |D_s|, C]`: the neighbours' mean output.

        It adds nothing to the state.
        """
        return mean, {}
