"""What algorithms without a server share: one model per device, neighbours on a graph, and averages with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.engine import Algorithm, ClientData, Models, Problem, RoundContext, average, check_mixing
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import ranged

MIXING = ("metropolis", "uniform")


@dataclass(frozen=True)
class Decentralised(Algorithm):
    """min sum_i C_i(w_i) such that neighbours agree, eq. (1)-(2) of FedF-ADMM.

    Every device takes part in each round, and exchanges messages only with its neighbours on the problem's graph. The
    state has 'client_params', one model per device, all started from one w^0. A device is judged with its own model
    after the round, which ends with mixing. 'trained' has the models after local training, before mixing.
    """

    epochs: int = ranged(1, 1)  # passes of the local update over the device's rows

    join_version: ClassVar[int] = 2
    needs_all_clients: ClassVar[bool] = True
    has_server: ClassVar[bool] = False
    owned: ClassVar[tuple[str, ...]] = ("client_params", "trained")

    @property
    def moment(self) -> str:
        return "mixed"

    def check(self, problem: Problem) -> None:
        check_graph(self, problem)

    def init(self, problem: Problem, key: jax.Array) -> dict:
        start = problem.broadcast(problem.model.init(key))
        return {"client_params": start, "trained": start}

    def client_update(self, problem: Problem, data: ClientData, key: jax.Array, params: dict) -> dict:
        """Run the local update: SGD on the device's own rows.

        Eq. (11) of FedF-ADMM is a gradient step on the sum of the losses over D_i. Here, as in the papers' experiments,
        it is minibatch SGD on their mean. So a step size means the same for every device.
        """
        return self.train(problem.loss, params, data, key, epochs=self.epochs, project=problem.project)

    def models(self, problem: Problem, state: dict, key: jax.Array) -> Models:
        return state["client_params"], {}

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        return {"trained": (state["trained"], {})}

    def join_update(self, problem: Problem, data: ClientData, key: jax.Array, start: dict) -> dict:
        """Train a newcomer's model on its own rows alone."""
        return self.train(problem.loss, start, data, key, epochs=self.join_epochs, project=problem.project)

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The newcomers' models: each starts at the mean of all devices' params, then trains alone.

        The papers do not say where a newcomer starts.
        """
        start = mean_of(state["client_params"])
        return {"": (self.for_cohort(problem, self.join_update, problem.everyone(key), shared=(start,)), {})}

    def monitor(self, problem: Problem, state: dict) -> dict[str, jax.Array]:
        """The curve 'consensus': ||w_i - mean w||_2, of which the mean over the devices is reported."""
        return {"consensus": disagreement(problem, state["client_params"])}


def check_graph(algorithm: Algorithm, problem: Problem) -> None:
    """Raise `InputError` unless the problem has a graph of its clients.

    A device sends the same message to all its neighbours. So bytes are those of one link, up and down alike.
    """
    if problem.graph is None:
        raise InputError(f"{type(algorithm).__name__} has no server and needs a graph; set `graph`, such as 'ring'")
    if problem.graph.num_clients != problem.num_clients:
        raise InputError(
            f"the graph has {problem.graph.num_clients} clients, the data have {problem.num_clients}; they must agree"
        )
    check_mixing(problem.graph.neighbour_mean)


def check_matrix(algorithm: Algorithm, problem: Problem, mixing: str) -> None:
    """Raise `InputError` unless the problem has a graph, with a valid mixing matrix P of this name."""
    check_graph(algorithm, problem)
    check_mixing(getattr(problem.graph, mixing), doubly=mixing == "metropolis")


def mixed(problem: Problem, at: RoundContext, stacked: Any, mixing: str) -> Any:
    """Mix over the graph: x_i <- sum_j P_ij x_j over a device and its neighbours.

    'metropolis': P has Metropolis weights, which are doubly stochastic on every graph, as the theory requires.
    'uniform' is the plain mean in the codes of DePRL and DisPFL; it is the same where all devices have equally many
    neighbours.
    """
    return problem.mix(at, stacked, getattr(problem.graph, mixing))


def mean_of(stacked: Any) -> Any:
    """The mean over all devices."""
    return average(stacked, jnp.ones(len(jax.tree.leaves(stacked)[0])))


def disagreement(problem: Problem, stacked: Any) -> jax.Array:
    """The distance ||x_i - mean x||_2 of every device from the mean, `[N]`."""
    return distances(problem, stacked, mean_of(stacked))


def distances(problem: Problem, stacked: Any, shared: Any) -> jax.Array:
    """The distance ||x_i - x||_2 of every client from what is shared, `[clients]`.

    One client after the other on a CPU, so that its bits are the same however clients are spread over devices.
    """
    return problem.for_clients(lambda own, x: optax.tree.norm(optax.tree.sub(own, x)), stacked, shared=(shared,))


def averaged(problem: Problem, stacked: Any, mean: Any, beta: float) -> Any:
    """The average (21), (1 - beta) w_i + beta M_i[w_j], projected to the model's constraint set, if it has one."""
    mixed = jax.tree.map(lambda own, others: (1 - beta) * own + beta * others, stacked, mean)
    return project_all(problem, problem.project, mixed)


def project_all(problem: Problem, project: Callable, stacked: Any) -> Any:
    """Apply `project` to every device's params, if the model has a constraint set."""
    return problem.for_clients(project, stacked) if problem.model.constrained else stacked
