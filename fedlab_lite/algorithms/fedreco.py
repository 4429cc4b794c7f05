"""FedReCo: "Consensus Optimization at Representation", Algorithm 1: one extractor per client, agreement on features."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.algorithms import parts
from fedlab_lite.engine import Batch, ClientData, Models, Problem, RoundContext, fit_head, length_of
from fedlab_lite.util.fields import one_of, ranged


@dataclass(frozen=True)
class FedReCo(parts.PartialPersonalisation):
    """min (1/M) sum_i [f_i(u_i, v_i) + lambda/2 H_i(u_i, u_0)], eq. (5), H_i the mean ||h(x; u_i) - h(x; u_0)||^2.

    A client keeps its extractor u_i ('thetas') and head v_i ('heads') between rounds. It computes the features of its
    own rows with the server's u_0 ('theta'). It sends only the gradient of H_i with respect to u_0.

    The reference code differs in three ways. It sums H_i over rows (`loss`), takes G_i from all of them (`gradient`),
    and clips the mean of the G_i to length 10 (`server_clip`). Its lambda of 0.01, with sums over 48 rows, is 0.48 with
    means.

    The server takes gradient steps of its own (`server_lr`), so there is no `server_optimizer`.

    The paper's own lambda and step sizes were in an appendix that we do not have. So was its variance reduction, which
    is a reconstruction here: SVRG about u_i^t on H_i alone, and G_i from all rows.
    """

    epochs: int = ranged(1, 1)  # K_u, as passes over the client's rows (1 in the paper's runs)
    head_epochs: int = ranged(1, 1)  # K_v, likewise
    steps: int | None = ranged(None, 1)  # K_u, as random batches, which is what is printed; None: `epochs`
    head_steps: int | None = ranged(None, 1)  # K_v, likewise; None: `head_epochs`
    head_lr: float | None = ranged(None, 0, above=True)  # eta_v; eta_u is `lr`, and None takes that
    server_lr: float = ranged(0.01, 0, above=True)  # eta_0
    server_clip: float | None = ranged(None, 0, above=True)  # a longer mean of the G_i is scaled to this length
    penalty: float = ranged(0.5, 0)  # lambda
    loss: str = one_of("mean", "sum")  # H_i over rows: the 'mean', eq. (5), or the 'sum'
    gradient: str = one_of("batch", "full")  # G_i is of a fresh 'batch', line 18, or of the 'full' set
    variance_reduction: str = one_of("none", "regulariser")  # 'none', or of the 'regulariser'
    measures: str = one_of("distance", "theorem")  # monitored: H; or the full gradients of the theorem as well

    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "head_lr", "server_lr")

    @property
    def moment(self) -> str:
        """No moment: the server changes no u_i, so these are the same before and after a message."""
        return ""

    def local_steps(
        self, problem: Problem, data: ClientData, key: jax.Array, own: dict, u_0: dict, head: dict, body: dict
    ) -> dict:
        """Run lines 7-17; `head` and `body` give the lengths: `{"epochs": ...}` or `{"steps": ...}`."""
        v_key, u_key = jax.random.split(key)
        head = head | {"batch_size": self.batch_size}  # lines 8-12: v_i, on features of u_i^t
        v = fit_head(problem, own["thetas"], own["heads"], data, v_key, self.client_optimizer(self.head_lr), **head)

        def regulariser(u: dict, batch: Batch):  # H_i on a batch
            return parts.distance(problem, u, u_0, batch)

        if self.variance_reduction == "regulariser":
            regulariser = parts.reduced(regulariser, own["thetas"], data)

        def loss(u: dict, batch: Batch):  # lines 13-16: u_i, one batch through both extractors
            value = problem.loss({"representation": u, "head": v}, batch)[0]
            rows = batch.weight.sum() if self.loss == "sum" else 1.0
            return value + self.penalty / 2 * rows * regulariser(u, batch), None

        u = self.train(loss, own["thetas"], data, u_key, project=problem.model.project, **body)
        return {"thetas": u, "heads": v}

    def message(self, problem: Problem, data: ClientData, key: jax.Array, u: dict, u_0: dict) -> dict:
        """The message G_i of line 18: the gradient of H_i(u_i^{t+1}, u_0^t) with respect to u_0."""

        def gap(u_0: dict, batch: Batch):
            return parts.distance(problem, u, u_0, batch)

        if self.gradient == "full" or self.variance_reduction == "regulariser":
            gradient, rows = parts.mean_gradient(gap, u_0, data), data.size
        else:
            batch = parts.random_batch(data, key, self.batch_size)
            gradient, rows = jax.grad(gap)(u_0, batch), batch.weight.sum()
        return jax.tree.map(lambda g: (g * rows).astype(g.dtype), gradient) if self.loss == "sum" else gradient

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, own: dict, u_0: dict) -> Models:
        """Run lines 7-18; returns what the client sends, and what it keeps."""
        key, batch_key = jax.random.split(key)
        head, body = length_of(self.head_epochs, self.head_steps), length_of(self.epochs, self.steps)
        new = self.local_steps(problem, data, key, own, u_0, head, body)
        return self.message(problem, data, batch_key, new["thetas"], u_0), new

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        u_0 = problem.downlink(state["theta"])  # line 3
        own = problem.take({name: state[name] for name in self.owned}, at)
        sent, new = self.for_cohort(problem, self.client_update, at, own, shared=(u_0,))
        gradient = problem.uplink(at, sent, jnp.ones(at.cohort.shape))  # line 4
        clip = [] if self.server_clip is None else [optax.clip_by_global_norm(self.server_clip)]
        step = optax.chain(*clip, optax.sgd(self.server_lr))  # line 5, which leaves lambda/2 to eta_0
        updates, _ = step.update(gradient, step.init(u_0))
        theta = problem.model.project(optax.apply_updates(u_0, updates))
        return state | {"theta": theta} | problem.put_all(state, at, new)

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        """The models of the clients: each answers with its own u_i and v_i."""
        return {"representation": state["thetas"], "head": state["heads"]}, {}

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        return {}

    def join_update(self, problem: Problem, data: ClientData, key: jax.Array, u_0: dict, head: dict) -> dict:
        passes = {"epochs": self.join_epochs}
        return self.local_steps(problem, data, key, {"thetas": u_0, "heads": head}, u_0, passes, passes)

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The newcomers' models: each starts at u_0 and the first head, and trains as a client does.

        The paper has no newcomers.
        """
        shared = (state["theta"], state["new_head"])
        own = self.for_cohort(problem, self.join_update, problem.everyone(key), shared=shared)
        return {"": ({"representation": own["thetas"], "head": own["heads"]}, {})}

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """The curves of consensus and stationarity.

        'representation_gap': H_i(u_i, u_0); 'gamma_1', 'gamma_2', 'gamma_3': the squared gradients of Theorem 1.
        """
        penalty = self.penalty if self.measures == "theorem" else None
        return parts.measured(problem, state["thetas"], state["heads"], state["theta"], penalty)
