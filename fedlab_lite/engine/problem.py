"""Problem: data, model, task, graph and channel of a training, and the transfers between clients and server."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from fedlab_lite.data import Federated, apart
from fedlab_lite.deq import Solution
from fedlab_lite.engine.averaging import average, mix
from fedlab_lite.engine.channel import Channel, count
from fedlab_lite.engine.clients import for_clients
from fedlab_lite.engine.devices import balanced, broadcast, mesh, per_row, put, take
from fedlab_lite.engine.graphs import Graph
from fedlab_lite.engine.local import Batch, ClientData
from fedlab_lite.engine.task import TASKS, check_labels
from fedlab_lite.nn import Model
from fedlab_lite.util import InputError, choose

_CHANNEL = 0xC4A77E1  # keeps the channel's draws apart from the clients'


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundContext:
    """The context of a round: its index, the clients that take part, and its random key.

    Example:
      >>> at = RoundContext(index=jnp.int32(0), cohort=jnp.array([4, 1]), key=jax.random.key(0))
      >>> at.order().tolist()  # by number: client 1 stands second
      [1, 0]
    """

    index: Any  # from 0
    cohort: Any  # [m] clients; the index num_clients is an idle slot
    key: Any  # for everything that is random in this round
    all_clients: bool = field(default=False, metadata={"static": True})  # the cohort is 0 ... num_clients - 1
    num_sampled: int | None = field(default=None, metadata={"static": True})  # without idle slots; None: m

    def order(self) -> Int[Array, " counted"] | None:
        """The places of the clients, sorted by their number, without idle slots; None: the present order."""
        if self.all_clients or (mesh().size == 1 and self.num_sampled is not None):
            return None
        return jnp.argsort(self.cohort, stable=True)[: self.num_sampled or len(self.cohort)]

    def keys(self, purpose: int | None = None) -> Key[Array, " m"]:
        """A key for each client of the cohort; it depends on the client's index, and not on the other clients."""
        key = self.key if purpose is None else jax.random.fold_in(self.key, purpose)
        return jax.vmap(jax.random.fold_in, (None, 0))(key, self.cohort)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Problem:
    """The problem that an algorithm works on; a pytree, so it passes through `jit` as an argument.

    Example:
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=40)
      >>> Problem(data, make_model("mlp", data.input_shape, data.num_classes)).num_clients
      4
    """

    data: Federated | Any  # or an object with the same arrays
    model: Model | Any = field(metadata={"static": True})  # or an object with the same methods
    executor: str = field(default="auto", metadata={"static": True})  # see `for_clients`
    newcomers: Federated | None = None  # clients that join after the others have been trained
    graph: Graph | None = None  # which clients exchange messages, without a server
    weight: Any = None  # [clients], weights in an average; None: the algorithm's own
    channel: Channel | None = None  # what happens to messages; None: they arrive unchanged
    task: Any = field(default=None, metadata={"static": True})  # a `Task`; None: the one that the data name
    validation: Federated | None = None  # the same clients, with rows held out of training in place of test rows
    clients_at_once: int | None = field(default=None, metadata={"static": True})  # in training, see `for_clients`
    judged_at_once: int | None = field(default=None, metadata={"static": True})  # the same when they are judged
    judge_training: bool = field(default=False, metadata={"static": True})  # judge models on training rows as well

    def __post_init__(self):
        if self.task is None and hasattr(self.data, "task"):  # `jit` rebuilds problems from placeholders
            choose("task", self.data.task, TASKS)
            object.__setattr__(self, "task", TASKS[self.data.task])
        if isinstance(self.task, type):
            raise InputError(f"task is the class {self.task.__name__}; use an object: {self.task.__name__}()")

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    # --- the task ---------------------------------------------------------------------------------------------------

    def mean_loss(
        self, outputs: Float[Array, "B ..."], y: Shaped[Array, "B ..."], weight: Shaped[Array, " B"]
    ) -> Float[Array, ""]:
        """The mean of the task's `row_loss` over the labels that count, of the rows that `weight [B]` counts."""
        counted, losses = self.task.counted(y, weight), self.task.row_loss(outputs, y)
        check_labels(self.task, "row_loss", losses, counted)
        return jnp.sum(losses * counted) / jnp.maximum(counted.sum(), 1)

    def loss(self, params: dict, batch: Batch) -> tuple[Float[Array, ""], Float[Array, "B ..."] | None]:
        """The mean loss of a batch in training, and its rows' equilibria `[B, ...]` (None: an explicit model).

        The loss includes the mean of the rows' `penalty`, where the equilibrium layer has a regulariser.
        """
        outputs, solution = self.model.forward(params, batch.x, key=batch.key, z0=batch.z0, budget=batch.budget)
        loss = self.regularised(self.mean_loss(outputs, batch.y, batch.weight), solution, batch)
        return loss, None if solution is None else solution.z

    def regularised(self, loss: Float[Array, ""], solution: Solution | None, batch: Batch) -> Float[Array, ""]:
        """Return a loss in training plus the mean of the rows' `penalty`, if the layer has a regulariser.

        Raises: `InputError` where the layer has one, but the step took place without a key.
        """
        if solution is None:
            return loss
        if solution.penalty is not None:
            return loss + jnp.sum(solution.penalty * batch.weight) / jnp.maximum(batch.weight.sum(), 1)
        if self.model.regularised:
            raise InputError(
                f"this algorithm takes a step without a key, and the regulariser of {self.model.name} needs one; set "
                "regulariser=0, or use another algorithm, such as fedavg or fedeq"
            )
        return loss

    def equilibria(self, rows: int) -> jax.Array | None:
        """An empty memory of equilibria `[rows, ...]` for `local_train`; None for an explicit model."""
        shape = self.model.equilibrium_shape()
        return None if shape is None else jnp.zeros((rows, *shape))

    def project(self, params: dict) -> dict:
        """The params with the representation projected to the model's constraint set, if it has one."""
        return params | {"representation": self.model.project(params["representation"])}

    # --- clients ----------------------------------------------------------------------------------------------------

    def everyone(self, key: Key[Array, ""]) -> RoundContext:
        """The context of all clients, outside any round."""
        clients = self.num_clients
        return RoundContext(jnp.int32(0), jnp.arange(clients), key, all_clients=True, num_sampled=clients)

    def at(self, index: Int[Array, ""] | int, cohort: Int[Array, " m"], key: Key[Array, ""]) -> RoundContext:
        """The context of round `index` with the clients `cohort [m]`, in the order that suits the devices."""
        if len(cohort) == self.num_clients:
            return replace(self.everyone(key), index=index)
        return RoundContext(index, balanced(jnp.sort(cohort), self.data.size), key, num_sampled=len(cohort))

    def take(self, tree: PyTree, at: RoundContext) -> PyTree:
        """The cohort's rows of a tree that is stacked over all clients."""
        if at.all_clients:
            return tree
        stacked, pools, together = apart(tree)
        return together(take(stacked, at.cohort), pools)

    def put(self, tree: PyTree, at: RoundContext, rows: PyTree) -> PyTree:
        """The tree with the cohort's rows replaced; other clients' rows stay."""
        return rows if at.all_clients else put(tree, at.cohort, rows)

    def put_all(self, state: dict, at: RoundContext, new: dict) -> dict:
        """The state's entries that `new` names, each with the cohort's rows replaced by those of `new`."""
        return {name: self.put(state[name], at, rows) for name, rows in new.items()}

    def broadcast(self, tree: PyTree) -> PyTree:
        """The same tree for every client, stacked on axis 0."""
        return broadcast(tree, self.num_clients)

    def for_cohort(self, fn: Callable, at: RoundContext, *stacked: PyTree, shared: tuple = ()) -> PyTree:
        """Apply `fn(data: ClientData, key, *rows, *shared)` to every client of the cohort, each with its own key."""
        data = ClientData(*self.take((self.data.x, self.data.y, self.data.size, self.data.budget), at))
        return self.for_clients(fn, data, at.keys(), *stacked, shared=shared, sizes=data.size)

    def for_clients(self, fn: Callable, *stacked: PyTree, judging: bool = False, **options: Any) -> PyTree:
        """Apply `engine.for_clients` with this problem's executor, and its groups for training or for judging."""
        at_once = self.judged_at_once if judging else self.clients_at_once
        return for_clients(fn, *stacked, executor=self.executor, clients_at_once=at_once, **options)

    # --- messages ---------------------------------------------------------------------------------------------------

    def downlink(self, message: PyTree) -> PyTree:
        """Send the server's message to each client of the cohort; it arrives unchanged, and its bytes are counted."""
        count("down", message)
        return message

    def transmit(self, at: RoundContext, sent: PyTree, *, ways: tuple[str, ...] = ("up",), packed=None) -> PyTree:
        """What is received of every client's message, leaves `[m, ...]`: clipped, noised and counted.

        `packed`: the shapes of one message as it is sent, where it is sent in fewer numbers than it is computed with. A
        second message of a round needs a context with another key, or its noise is that of the first.
        """
        whole = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), sent)
        for way in ways:
            count(way, whole if packed is None else packed)
        if self.channel is None or self.channel.clip is None:
            return sent
        shared = (self.channel,)
        return self.for_clients(lambda sent, key, channel: channel(sent, key), sent, at.keys(_CHANNEL), shared=shared)

    def sampled(self, at: RoundContext) -> Bool[Array, " m"]:
        """Which places of the cohort hold a client, `[m]`; the others are idle."""
        return at.cohort < self.num_clients

    def weights(self, at: RoundContext, own: Shaped[Array, " m"] | None = None) -> Shaped[Array, " m"]:
        """The weight of each client of the cohort in the server's average, `[m]`; 0 in an idle place.

        These are the problem's `weight` where it has one (see `fusion`), else the algorithm's `own [m]`; None: the
        client's training rows.
        """
        if self.weight is not None:
            own = self.take(jnp.asarray(self.weight), at)
        elif own is None:
            own = self.take(jnp.asarray(self.data.size), at)
        return jnp.where(self.sampled(at), own, 0)

    def uplink(self, at: RoundContext, changes: PyTree, own_weights: Shaped[Array, " m"] | None = None) -> PyTree:
        """The server's weighted mean of the clients' messages `[m, ...]`."""
        received = self.transmit(at, changes)
        return average(received, self.weights(at, own_weights), order=at.order())

    def exchange(self, at: RoundContext, stacked: PyTree) -> PyTree:
        """The mean M_i[x_j] of the neighbours' messages, for every client; leaves `[N, ...]`."""
        received = self.transmit(at, stacked, ways=("up", "down"))
        return mix(self.graph.neighbour_mean, received, self.graph.neighbours)

    def mix(self, at: RoundContext, stacked: PyTree, matrix: Float[Array | np.ndarray, "N N"]) -> PyTree:
        """Mix over the graph: sum_j matrix[i, j] x_j, with rows that sum to one.

        A client's own value is exact, and its neighbours' values are used as received. Leaves `[N, ...]`.
        """
        received = self.transmit(at, stacked, ways=("up", "down"))
        if received is stacked:
            return mix(matrix, stacked, self.graph.neighbours)
        others = jnp.asarray(matrix) * (1 - jnp.eye(self.num_clients))
        own = 1 - others.sum(1)
        return jax.tree.map(
            lambda theirs, mine: theirs + (per_row(own, mine) * mine).astype(theirs.dtype),
            mix(others, received, self.graph.neighbours),
            stacked,
        )
