"""A shared representation and one head per client: state, models, newcomers, and training the two in turn."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from fedlab_lite.algorithms.parts.server import server_start, server_step
from fedlab_lite.engine import Algorithm, Batch, ClientData, Models, Problem, RoundContext, fit_head, local_train


@dataclass(frozen=True)
class PartialPersonalisation(Algorithm):
    """A representation theta and one head w_i per client: what all methods with personal heads have in common.

    The state has 'theta', 'heads' and 'thetas' (stacked), and 'new_head', the head that newcomers get. Clients start
    from it, except for DePRL's, which draw heads of their own by default.

    With a server that averages representations, theta_i in 'thetas' is what client i trained last. A client is judged
    with theta and its own head, which is after mixing. After local training it has its theta_i in place of theta.
    """

    owned: ClassVar[tuple[str, ...]] = ("heads", "thetas")

    @property
    def moment(self) -> str:
        return "mixed"

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        theta, head = params["representation"], params["head"]
        own = {"heads": problem.broadcast(head), "thetas": problem.broadcast(theta)}
        return {"theta": theta, "new_head": head} | own | server_start(self, theta)

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return {"head": state["heads"]}, {"representation": state["theta"]}

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        return {"trained": ({"representation": state["thetas"], "head": state["heads"]}, {})}

    def join_update(self, problem: Problem, data: ClientData, key: jax.Array, theta: dict, head: dict) -> dict:
        """Train only a newcomer's head, at `head_lr` where there is one; theta stays what others have learned."""
        optimizer = self.client_optimizer(getattr(self, "head_lr", None))
        options = {"epochs": self.join_epochs, "batch_size": self.batch_size}
        return fit_head(problem, theta, head, data, key, optimizer, **options)

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        shared = (state["theta"], state["new_head"])
        heads = self.for_cohort(problem, self.join_update, problem.everyone(key), shared=shared)
        return {"": ({"head": heads}, {"representation": state["theta"]})}


def body_round(algorithm: Any, problem: Problem, state: dict, at: RoundContext) -> dict:
    """Run a round of FedPer and FedRep: clients train body and head, and the server averages changes of the body."""
    theta = problem.downlink(state["theta"])
    own = problem.take(state["heads"], at)
    changes, new = algorithm.for_cohort(problem, algorithm.client_update, at, own, shared=(theta,))
    change = problem.uplink(at, changes)
    theta, server = server_step(algorithm, problem, at, state, theta, change)
    return state | server | {"theta": problem.model.project(theta)} | problem.put_all(state, at, new)


def alternate(
    algorithm: Algorithm,
    problem: Problem,
    data: ClientData,
    key: jax.Array,
    head: dict,
    theta: dict,
    *,
    for_head: dict,
    for_body: dict,
    head_lr: jax.Array | float | None = None,
) -> tuple[dict, dict]:
    """Train the head on the received body, then the body under that head; returns both new, (theta, head).

    `for_head` and `for_body` give the lengths: `{"epochs": ...}` or `{"steps": ...}`; `head_lr` None: the algorithm's
    lr.
    """
    head_key, body_key = jax.random.split(key)
    options = for_head | {"batch_size": algorithm.batch_size}

    def head_loss(head: dict, batch: Batch):
        features = problem.model.represent({"representation": theta}, batch.x, budget=batch.budget)
        return problem.mean_loss(problem.model.classify(head, features, key=batch.key), batch.y, batch.weight), None

    def loss(theta: dict, batch: Batch):
        return problem.loss({"representation": theta, "head": head}, batch)

    optimizer = algorithm.client_optimizer(head_lr)
    if "steps" in for_head:  # a few batches: no need to represent every row
        head = local_train(head_loss, head, data, head_key, optimizer, **options)
    else:
        head = fit_head(problem, theta, head, data, head_key, optimizer, **options)
    return algorithm.train(loss, theta, data, body_key, project=problem.model.project, **for_body), head
