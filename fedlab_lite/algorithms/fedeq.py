"""FeDEQ: "Federated Deep Equilibrium Learning", Algorithm 1: consensus ADMM over the shared representation."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedlab_lite.algorithms.fedper import PartialPersonalisation
from fedlab_lite.clients import Batch, Problem, broadcast, fit_head, local_sgd, put, take
from fedlab_lite.errors import InputError, choose
from fedlab_lite.fusion import average

WARM_STARTS = ("never", "visit", "rounds")


def lagrangian_terms(theta_i, theta, dual, rho: float) -> jax.Array:
    """<lambda_i, theta_i - theta> + rho/2 ||theta_i - theta||^2: what eq. (11) adds to the local loss."""
    gap = optax.tree.sub(theta_i, theta)
    return optax.tree.vdot(dual, gap) + rho / 2 * optax.tree.vdot(gap, gap)


@dataclass(frozen=True)
class FeDEQ(PartialPersonalisation):
    """min sum_i L_i(theta_i, w_i) s.t. theta_i = theta, eq. (2), by ADMM on the augmented Lagrangian (11).

    Judged with the shared theta and the client's own w_i, like for like with FedRep; `other_models` has the client's
    own theta_i, which is what the reference code scores.

    Warm starts (Sec. III-B1; the reference's are a no-op): a row's equilibrium is kept until its next epoch. Kept until
    the client's next visit too ('rounds'), it takes 50 KB a row (DEQ-ResNet-S, 28x28) and saves at most the first
    epoch's evaluations: 45 % of them with `start="own"`, none with 'received', where it belongs to another theta_i.
    """

    epochs: int = 5  # passes of REP_UPDATE (lines 12-20) over the client's rows
    head_epochs: int = 3  # passes for w_i (line 8)
    rho: float = 0.01  # rho, penalty on theta_i - theta
    start: str = (
        "own"  # REP_UPDATE starts at 'own' theta_i^t (line 9) or at 'received' theta^{t+1} (eq. (24), the code)
    )
    server: str = "mean"  # line 4: 'mean' of theta_i, as printed; 'argmin' of the Lagrangian, as eq. (18) assumes
    dual_scale: float = 1e-5  # std of the random lambda_i^0 (line 2, no number printed): too small to steer anything
    warm_start: str = "visit"  # a row's equilibrium starts its next: 'never', in a 'visit', over 'rounds' (Sec. III-B1)

    def __post_init__(self):
        choose("start of REP_UPDATE", self.start, ("own", "received"))
        choose("server of FeDEQ", self.server, ("mean", "argmin"))
        choose("warm_start of FeDEQ", self.warm_start, WARM_STARTS)
        if not self.rho > 0:
            raise InputError(f"rho must be positive, got {self.rho}; the paper tries 0.001 to 10")

    def init(self, problem: Problem, key: jax.Array) -> dict:
        """Line 2: theta^0 = theta_i^0, w_i^0, lambda_i^0; S_0 is everybody, so line 4 gives theta^1 = theta^0."""
        params_key, dual_key = jax.random.split(key)
        state = super().init(problem, params_key)
        flat, as_tree = ravel_pytree(state["theta"])
        noise = jax.random.normal(dual_key, (problem.num_clients, flat.size))
        state |= {
            "thetas": broadcast(state["theta"], problem.num_clients),
            "duals": jax.vmap(as_tree)(self.dual_scale * noise),
        }
        if self.warm_start == "rounds":
            state["equilibria"] = problem.equilibria(*problem.data.y.shape[:2])
        return state

    def client_update(self, problem: Problem, data, key: jax.Array, own: dict, theta: dict) -> dict:
        """Lines 7-11: `theta` is what the client received, `own` what it keeps; returns what it keeps then."""
        w_key, theta_key = jax.random.split(key)
        # line 8: w_i <- argmin L_i(theta, w_i)
        w_i = fit_head(problem, theta, own["heads"], data, w_key, epochs=self.head_epochs, **self._sgd())

        # lines 9, 12-20: gradient steps on L_i + <lambda_i, theta_i - theta> + rho/2 ||theta_i - theta||^2
        def augmented_loss(theta_i: dict, batch: Batch):
            loss, z = problem.loss({"representation": theta_i, "head": w_i}, batch)
            return loss + lagrangian_terms(theta_i, theta, own["duals"], self.rho), z

        start = own["thetas"] if self.start == "own" else theta
        memory = problem.equilibria(data.y.shape[0]) if self.warm_start == "visit" else own.get("equilibria")
        sgd = {"epochs": self.epochs, "project": problem.model.project, **self._sgd()}
        trained = local_sgd(augmented_loss, start, data, theta_key, memory=memory, **sgd)
        theta_i, memory = (trained, None) if memory is None else trained
        # line 10: lambda_i <- lambda_i + rho (theta_i - theta)
        dual = optax.tree.add_scale(own["duals"], self.rho, optax.tree.sub(theta_i, theta))
        new = {"heads": w_i, "thetas": theta_i, "duals": dual, "equilibria": memory}
        return {name: new[name] for name in own}

    def round(self, problem: Problem, state: dict, cohort: jax.Array, key: jax.Array) -> dict:
        own = {name: state[name] for name in ("heads", "thetas", "duals", "equilibria") if name in state}
        new = self.for_cohort(problem, self.client_update, cohort, key, take(own, cohort), shared=(state["theta"],))
        # line 4 of the next iteration, done here so that the freshest theta is judged: uniform mean over S_t
        sent = new["thetas"]
        if self.server == "argmin":
            sent = optax.tree.add_scale(sent, 1 / self.rho, new["duals"])
        theta = average(sent, problem.weights(cohort, jnp.ones(cohort.shape)))
        return state | put(own, cohort, new) | {"theta": theta}  # idle clients keep theirs

    def other_models(self, problem: Problem, state: dict) -> dict[str, tuple[dict, dict]]:
        return {"own": ({"representation": state["thetas"], "head": state["heads"]}, {})}

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """'consensus': (1/n) sum_i ||theta_i - theta||_2, the residual of Fig. 11."""
        gap = jax.tree.map(lambda own, theta: own - theta, state["thetas"], state["theta"])
        return {"consensus": jax.vmap(optax.tree.norm)(gap).mean()}
