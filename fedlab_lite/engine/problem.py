"""Problem: what an algorithm works on. Data, model, task, graph, channel; and the ways between clients and server."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from fedlab_lite.data import PAD, Federated, apart
from fedlab_lite.engine.averaging import average
from fedlab_lite.engine.channel import Channel, count
from fedlab_lite.engine.devices import Sparse, broadcast, combine, dealt, mesh, put, take
from fedlab_lite.engine.graphs import Graph
from fedlab_lite.engine.local import Batch, ClientData, for_clients
from fedlab_lite.nn import Model
from fedlab_lite.util import choose

_CHANNEL = 0xC4A77E1  # keeps the channel's draws apart from the clients'


class Task:
    """What outputs are for: the loss of a row, what of it counts, and what is reported. Classification as it stands.

    A new task is a subclass: `Problem(data, model, task=MyTask())`. Equal tasks share compiled programs.
    """

    headline = "accuracy"  # the metric whose value every client is judged by

    def row_loss(self, outputs: Float[Array, "B *labels C"], y: Int[Array, " B *labels"]) -> Float[Array, " B *labels"]:
        """Loss of every label: of `outputs [B, ..., C]` and `y [B, ...]`, `[B, ...]`."""
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y)

    def counted(self, y: Shaped[Array, " B *labels"], weight: Shaped[Array, " B"]) -> Shaped[Array, " B *labels"]:
        """Which labels of the rows that `weight [B]` (1 or 0) counts do count: 1 or 0, shaped like `row_loss`."""
        return weight

    def metrics(
        self, outputs: Float[Array, "B *labels C"], y: Int[Array, " B *labels"]
    ) -> dict[str, Shaped[Array, " B *labels"]]:
        """What is reported beside the loss: name -> a value for every label, shaped like `row_loss`."""
        return {"accuracy": outputs.argmax(-1) == y}

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self):
        return hash(type(self))


class NextCharacter(Task):
    """A label for every character of a text `[B, T]`; padding does not count."""

    def counted(self, y: Int[Array, "B T"], weight: Shaped[Array, " B"]) -> Shaped[Array, "B T"]:
        return weight[:, None] * (y != PAD)


class Regression(Task):
    """Outputs `[B, d]` against numbers `y [B, d]`, or `[B]` for one a row: half the squared distance.

    Clients are judged by the distance.
    """

    headline = "distance"

    def row_loss(self, outputs: Float[Array, "B d"], y: Float[Array, " B *d"]) -> Float[Array, " B"]:
        return jnp.sum(jnp.square(outputs - y.reshape(outputs.shape)), axis=-1) / 2

    def counted(self, y: Float[Array, " B *d"], weight: Shaped[Array, " B"]) -> Shaped[Array, " B"]:
        return weight

    def metrics(self, outputs: Float[Array, "B d"], y: Float[Array, " B *d"]) -> dict[str, Float[Array, " B"]]:
        return {"distance": jnp.linalg.norm(outputs - y.reshape(outputs.shape), axis=-1)}


TASKS = {"classification": Task(), "next_character": NextCharacter(), "regression": Regression()}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundContext:
    """Which round it is, and who takes part."""

    index: Any  # from 0
    cohort: Any  # [m] clients; the index num_clients is nobody, an idle place
    key: Any  # of everything that is random in this round
    everybody: bool = field(default=False, metadata={"static": True})  # the cohort is 0 ... num_clients - 1
    num_sampled: int | None = field(default=None, metadata={"static": True})  # without idle places; None: m

    def order(self) -> Int[Array, " counted"] | None:
        """The places of the clients by their number, idle ones left out; None: as they stand."""
        if self.everybody or (mesh().size == 1 and self.num_sampled is not None):
            return None
        return jnp.argsort(self.cohort, stable=True)[: self.num_sampled or len(self.cohort)]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Problem:
    """What an algorithm works on; a pytree, so it passes through `jit` as an argument.

    Example:
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=40)
      >>> Problem(data, make_model("mlp", data.input_shape, data.num_classes)).num_clients
      4
    """

    data: Federated | Any  # or what has its arrays
    model: Model | Any = field(metadata={"static": True})  # or what answers as it does
    executor: str = field(default="auto", metadata={"static": True})  # see `for_clients`
    newcomers: Federated | None = None  # clients that join when the others have been trained
    graph: Graph | None = None  # who talks to whom, where there is no server
    weight: Any = None  # [clients], what each counts in an average; None: as the algorithm has it
    channel: Channel | None = None  # what happens to messages; None: nothing
    task: Any = field(default=None, metadata={"static": True})  # a `Task`; None: the one that the data name
    validation: Federated | None = None  # the same clients, with rows held out of training in place of test rows
    clients_at_once: int | None = field(default=None, metadata={"static": True})  # see `for_clients`
    judge_training: bool = field(default=False, metadata={"static": True})  # judge models on training rows as well

    def __post_init__(self):
        if self.task is None and hasattr(self.data, "task"):  # `jit` rebuilds problems from placeholders
            choose("task", self.data.task, TASKS)
            object.__setattr__(self, "task", TASKS[self.data.task])

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    # --- the task ---------------------------------------------------------------------------------------------------

    def mean_loss(
        self, outputs: Float[Array, "B ..."], y: Shaped[Array, "B ..."], weight: Shaped[Array, " B"]
    ) -> Float[Array, ""]:
        """Mean of the task's `row_loss` over the labels that count, of the rows that `weight [B]` counts."""
        counted = self.task.counted(y, weight)
        return jnp.sum(self.task.row_loss(outputs, y) * counted) / jnp.maximum(counted.sum(), 1)

    def loss(self, params: dict, batch: Batch) -> tuple[Float[Array, ""], Float[Array, "B ..."] | None]:
        """Mean loss of a batch in training, and its rows' equilibria `[B, ...]` (None: an explicit model)."""
        outputs, solution = self.model.forward(params, batch.x, key=batch.key, z0=batch.z0, budget=batch.budget)
        return self.mean_loss(outputs, batch.y, batch.weight), solution and solution.z

    def equilibria(self, *rows: int) -> jax.Array | None:
        """A memory of equilibria `[*rows, ...]` for `local_train`, nothing seen yet; None for an explicit model."""
        shape = self.model.equilibrium_shape()
        return None if shape is None else jnp.zeros((*rows, *shape))

    def project(self, params: dict) -> dict:
        """Params with the representation inside the model's constraint set, if it has one."""
        return params | {"representation": self.model.project(params["representation"])}

    # --- clients ----------------------------------------------------------------------------------------------------

    def everyone(self, key: Key[Array, ""]) -> RoundContext:
        """All clients, outside any round."""
        return RoundContext(
            jnp.int32(0), jnp.arange(self.num_clients), key, everybody=True, num_sampled=self.num_clients
        )

    def at(self, index: Int[Array, ""] | int, cohort: Int[Array, " m"], key: Key[Array, ""]) -> RoundContext:
        """Round `index` with the clients `cohort [m]`, in the order that suits the devices."""
        if len(cohort) == self.num_clients:
            return replace(self.everyone(key), index=index)
        return RoundContext(index, dealt(jnp.sort(cohort), self.data.size), key, num_sampled=len(cohort))

    def take(self, tree: PyTree, at: RoundContext) -> PyTree:
        """The cohort's rows of a tree stacked over all clients."""
        if at.everybody:
            return tree
        stacked, pools, together = apart(tree)
        return together(take(stacked, at.cohort), pools)

    def put(self, tree: PyTree, at: RoundContext, rows: PyTree) -> PyTree:
        """The tree with the cohort's rows replaced; everybody else keeps theirs."""
        return rows if at.everybody else put(tree, at.cohort, rows)

    def broadcast(self, tree: PyTree) -> PyTree:
        """The same tree for every client, stacked on axis 0."""
        return broadcast(tree, self.num_clients)

    def for_cohort(self, fn: Callable, at: RoundContext, *stacked: PyTree, shared: tuple = ()) -> PyTree:
        """`fn(data: ClientData, key, *rows, *shared)` for every client of the cohort, each with its own key.

        A client's key depends on its index, not on who else was sampled.
        """
        data = ClientData(*self.take((self.data.x, self.data.y, self.data.size, self.data.budget), at))
        keys = jax.vmap(jax.random.fold_in, (None, 0))(at.key, at.cohort)
        return self.for_clients(fn, data, keys, *stacked, shared=shared)

    def for_clients(self, fn: Callable, *stacked: PyTree, shared: tuple = ()) -> PyTree:
        """`engine.for_clients`, executed as this problem has it."""
        return for_clients(fn, *stacked, shared=shared, executor=self.executor, clients_at_once=self.clients_at_once)

    # --- messages ---------------------------------------------------------------------------------------------------

    def downlink(self, message: PyTree) -> PyTree:
        """What the server sends to each client of the cohort: it arrives as it is, and is counted."""
        count("down", message, None)
        return message

    def transmit(
        self, at: RoundContext, sent: PyTree, *, ways: tuple[str, ...] = ("up",), packed: PyTree = None
    ) -> PyTree:
        """What is received of every client's message, leaves `[m, ...]`: clipped, noised, quantised, and counted.

        `packed`: the shapes that one message is sent in, where it is sent in fewer numbers than it is computed with.
        """
        whole = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), sent)
        for way in ways:
            count(way, whole if packed is None else packed, self.channel)
        if self.channel is None or (self.channel.clip is None and self.channel.bits is None):
            return sent
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(at.key, _CHANNEL), at.cohort)
        return self.for_clients(lambda sent, key, channel: channel(sent, key), sent, keys, shared=(self.channel,))

    def arrived(self, at: RoundContext) -> Bool[Array, " m"]:
        """`[m]`: whose message to the server was sent and arrived in this round."""
        sampled = at.cohort < self.num_clients
        if self.channel is None or self.channel.loss is None:
            return sampled
        channel = self.channel
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(at.key, _CHANNEL + 1), at.cohort)
        return sampled & jax.vmap(lambda key: channel.arrivals(key, ()))(keys)

    def weights(self, at: RoundContext, own: Shaped[Array, " m"] | None = None) -> Shaped[Array, " m"]:
        """`[m]`: what each client of the cohort counts in the server's average; 0 for whose message did not arrive.

        `weight` where the problem has one (see `fusion`), else the algorithm's `own [m]`; None: its training rows.
        """
        if self.weight is not None:
            own = self.take(jnp.asarray(self.weight), at)
        elif own is None:
            own = self.take(jnp.asarray(self.data.size), at)
        return jnp.where(self.arrived(at), own, 0)

    def total_weight(self) -> jax.Array | int:
        """What all clients together count, at equal weights or the problem's."""
        return self.num_clients if self.weight is None else jnp.sum(self.weight)

    def if_arrived(self, at: RoundContext, new: PyTree, old: PyTree) -> PyTree:
        """Rows of the cohort: `new` where the client's message to the server arrives in this round, else `old`."""
        if self.channel is None or self.channel.loss is None:
            return new
        heard = self.arrived(at)
        return jax.tree.map(lambda n, o: jnp.where(heard.reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old)

    def uplink(self, at: RoundContext, changes: PyTree, own_weights: Shaped[Array, " m"] | None = None) -> PyTree:
        """What the server makes of the clients' messages `[m, ...]`: the weighted mean of those that arrive.

        Clients send what has changed, so the mean is 0, and nothing changes at the server, where nothing arrives.
        """
        received = self.transmit(at, changes)
        return average(received, self.weights(at, own_weights), order=at.order())

    def exchange(self, at: RoundContext, stacked: PyTree) -> PyTree:
        """M_i[x_j]: what every client makes of its neighbours' messages, the mean of those that arrive.

        Leaves `[N, ...]`. A client that receives nothing goes by what it has itself.
        """
        return self.neighbours(at, self.transmit(at, stacked, ways=("up", "down")), stacked)

    def neighbours(self, at: RoundContext, received: PyTree, own: PyTree) -> PyTree:
        """`exchange` from what was received of everybody; every link loses messages for itself."""
        matrix = self.heard(at, self.graph.neighbour_mean)
        if self.channel is None or self.channel.loss is None:
            return self.over_links(matrix, received)
        total = matrix.sum(1)
        mean = self.over_links(matrix / jnp.where(total > 0, total, 1)[:, None], received)
        heard = jax.tree.map(lambda leaf: (total > 0).reshape(-1, *[1] * (leaf.ndim - 1)), own)
        return jax.tree.map(jnp.where, heard, mean, own)

    def mix(self, at: RoundContext, stacked: PyTree, matrix: Float[Array | np.ndarray, "N N"]) -> PyTree:
        """sum_j matrix[i, j] x_j, rows that sum to one: the client's own as it has it, its neighbours' as received.

        Leaves `[N, ...]`. What a lost message would have counted, the client's own counts in its place.
        """
        received = self.transmit(at, stacked, ways=("up", "down"))
        if received is stacked and (self.channel is None or self.channel.loss is None):
            return self.over_links(matrix, stacked)
        others = self.heard(at, jnp.asarray(matrix) * (1 - jnp.eye(self.num_clients)))
        own = 1 - others.sum(1)
        return jax.tree.map(
            lambda theirs, mine: theirs + (own.reshape(-1, *[1] * (mine.ndim - 1)) * mine).astype(theirs.dtype),
            self.over_links(others, received),
            stacked,
        )

    def heard(self, at: RoundContext, matrix: Float[Array | np.ndarray, "N N"]) -> Float[Array, "N N"]:
        """The matrix with 0 for every link that loses its message in this round, each for itself."""
        matrix = jnp.asarray(matrix)
        if self.channel is None or self.channel.loss is None:
            return matrix
        return jnp.where(self.channel.arrivals(jax.random.fold_in(at.key, _CHANNEL + 1), matrix.shape), matrix, 0)

    def over_links(self, matrix: Float[Array | np.ndarray, "N N"], stacked: PyTree) -> PyTree:
        """sum_j matrix[i, j] x_j over client i and its neighbours, leaves `[N, ...]`; few neighbours cost little."""
        matrix = jnp.asarray(matrix)
        if self.graph.neighbours is None:
            return combine(matrix, stacked, spread=True)
        index = jnp.concatenate([jnp.arange(self.num_clients)[:, None], self.graph.neighbours], axis=1)
        value = jnp.take_along_axis(matrix, index, axis=1, mode="fill", fill_value=0)
        return combine(Sparse(index, value), stacked, spread=True)
