"""FedF-ADMM: "Function-Space ADMM for Decentralized Federated Learning", Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedlab_lite.algorithms.parts import OUTPUTS, SHARES, Decentralised, check_shared_set, distill, distillation_round
from fedlab_lite.engine import Problem
from fedlab_lite.util.fields import one_of, ranged


@dataclass(frozen=True)
class FedFADMM(Decentralised):
    """min sum_i C_i(f_i) s.t. f_i = M_i[f_j], eq. (1) and (4), by ADMM on functions, realised by distillation.

    A multiplier is a function of x, stored as its values on D_s. It is the state's 'multipliers' g_i `[N, |D_s|, C]`,
    scaled as the paper's g-hat. Algorithm 1's time indices shift by one between its lines. (16) and (18) settle the
    order: the multiplier is updated first, and the new one enters the target. Local training, messages and distillation
    are the same as in CMFD.
    """

    rho: float = ranged(0.08, 0, above=True)  # rho-hat, step size of distillation
    distill_epochs: int = ranged(1, 0)  # passes over D_s
    distill_batch_size: int = ranged(100, 1)  # rows per step of distillation
    share: str = one_of("outputs", *SHARES)  # what crosses the network: 'outputs' on D_s, or 'params'
    output: str = one_of("probabilities", *OUTPUTS)  # what f(x) is; not printed: 'probabilities' (CMFD's), or 'logits'
    nu: float = ranged(0.01, 0, 1)  # nu, stabilisation: the multiplier's decay per round; 0 is the plain ADMM of (8)
    derivative_gain: float = ranged(0.0, 0)  # K_d of a PID controller, the paper's future work; 0 is its PI

    owned: ClassVar[tuple[str, ...]] = ("client_params", "trained", "multipliers", "errors")
    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "rho")
    check = check_shared_set
    round = distillation_round
    distill = distill  # eq. (12), (23)

    def init(self, problem: Problem, key: jax.Array) -> dict:
        """The initial state, line 1: one w^0 for all devices, and multipliers 0."""
        zeros = jnp.zeros((problem.num_clients, len(problem.data.shared_x), problem.data.num_classes))
        return super().init(problem, key) | {"multipliers": zeros, "errors": zeros}

    def targets(self, state: dict, outputs: jax.Array, mean: jax.Array) -> tuple[jax.Array, dict]:
        error = outputs - mean  # D^-1 L y~, what the controller drives to 0
        # line 6: g_i <- (1 - nu) g_i + y~_i - M_i[y~_j], eq. (13)
        multipliers = (1 - self.nu) * state["multipliers"] + error
        # line 7: y^_i = M_i[y~_j] - g_i
        slope = self.derivative_gain * (error - state["errors"])
        return mean - multipliers - slope, {"multipliers": multipliers, "errors": error}

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """The curves of CMFD, and 'disagreement'.

        'disagreement' is the root mean square of y~_i - M_i[y~_j] over D_s and the classes, of every device.
        """
        squares = jnp.square(state["errors"]).mean((1, 2))
        return super().monitor(problem, state) | {"disagreement": jnp.sqrt(squares)}
