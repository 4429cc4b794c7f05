"""Problem: data, model, task, graph and channel of a training, and the transfers between clients and server."""

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
    """A task: the loss of each label, which labels count, and which metrics are reported. This class is classification.

    A new task is a subclass: `Problem(data, model, task=MyTask())`. Equal tasks share compiled programs.

    Example:
      >>> class Hinge(Task):  # of two classes, of which the second is 1
      ...     def row_loss(self, outputs, y):
      ...         return jnp.maximum(0, 1 - (2 * y - 1) * (outputs[:, 1] - outputs[:, 0]))
      >>> Hinge().row_loss(jnp.array([[0.0, 2.0], [0.0, 0.25]]), jnp.array([1, 1])).tolist()
      [0.0, 0.75]
    """

    headline = "accuracy"  # the metric whose value every client is judged by

    def row_loss(self, outputs: Float[Array, "B *labels C"], y: Int[Array, " B *labels"]) -> Float[Array, " B *labels"]:
        """The loss `[B, ...]` of every label, from `outputs [B, ..., C]` and `y [B, ...]`."""
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y)

    def counted(self, y: Shaped[Array, " B *labels"], weight: Shaped[Array, " B"]) -> Shaped[Array, " B *labels"]:
        """Which labels count, of the rows that `weight [B]` (1 or 0) counts: 1 or 0, shaped like `row_loss`."""
        return weight

    def metrics(
        self, outputs: Float[Array, "B *labels C"], y: Int[Array, " B *labels"]
    ) -> dict[str, Shaped[Array, " B *labels"]]:
        """The metrics besides the loss: name -> a value for every label, shaped like `row_loss`."""
        return {"accuracy": outputs.argmax(-1) == y}

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self):
        return hash(type(self))


class NextCharacter(Task):
    """Next-character prediction: a label for every character of a text `[B, T]`; padding does not count."""

    def counted(self, y: Int[Array, "B T"], weight: Shaped[Array, " B"]) -> Shaped[Array, "B T"]:
        return weight[:, None] * (y != PAD)


class Regression(Task):
    """Regression of numbers `y [B, d]` by outputs `[B, d]`, with half the squared distance as loss.

    `y [B]` is one number per row. Clients are judged by the distance.
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
    """The context of a round: its index, the clients that take part, and its random key.

    Example:
      >>> at = RoundContext(index=jnp.int32(0), cohort=jnp.array([4, 1]), key=jax.random.key(0))
      >>> at.order().tolist()  # by number: client 1 stands second
      [1, 0]
    """

    index: Any  # from 0
    cohort: Any  # [m] clients; the index num_clients is an idle slot
    key: Any  # for everything that is random in this round
    everybody: bool = field(default=False, metadata={"static": True})  # the cohort is 0 ... num_clients - 1
    num_sampled: int | None = field(default=None, metadata={"static": True})  # without idle slots; None: m

    def order(self) -> Int[Array, " counted"] | None:
        """The places of the clients, sorted by their number, without idle slots; None: the present order."""
        if self.everybody or (mesh().size == 1 and self.num_sampled is not None):
            return None
        return jnp.argsort(self.cohort, stable=True)[: self.num_sampled or len(self.cohort)]


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
        """The mean of the task's `row_loss` over the labels that count, of the rows that `weight [B]` counts."""
        counted = self.task.counted(y, weight)
        return jnp.sum(self.task.row_loss(outputs, y) * counted) / jnp.maximum(counted.sum(), 1)

    def loss(self, params: dict, batch: Batch) -> tuple[Float[Array, ""], Float[Array, "B ..."] | None]:
        """The mean loss of a batch in training, and its rows' equilibria `[B, ...]` (None: an explicit model)."""
        outputs, solution = self.model.forward(params, batch.x, key=batch.key, z0=batch.z0, budget=batch.budget)
        return self.mean_loss(outputs, batch.y, batch.weight), solution and solution.z

    def equilibria(self, *rows: int) -> jax.Array | None:
        """An empty memory of equilibria `[*rows, ...]` for `local_train`; None for an explicit model."""
        shape = self.model.equilibrium_shape()
        return None if shape is None else jnp.zeros((*rows, *shape))

    def project(self, params: dict) -> dict:
        """The params with the representation projected to the model's constraint set, if it has one."""
        return params | {"representation": self.model.project(params["representation"])}

    # --- clients ----------------------------------------------------------------------------------------------------

    def everyone(self, key: Key[Array, ""]) -> RoundContext:
        """The context of all clients, outside any round."""
        return RoundContext(
            jnp.int32(0), jnp.arange(self.num_clients), key, everybody=True, num_sampled=self.num_clients
        )

    def at(self, index: Int[Array, ""] | int, cohort: Int[Array, " m"], key: Key[Array, ""]) -> RoundContext:
        """The context of round `index` with the clients `cohort [m]`, in the order that suits the devices."""
        if len(cohort) == self.num_clients:
            return replace(self.everyone(key), index=index)
        return RoundContext(index, dealt(jnp.sort(cohort), self.data.size), key, num_sampled=len(cohort))

    def take(self, tree: PyTree, at: RoundContext) -> PyTree:
        """The cohort's rows of a tree that is stacked over all clients."""
        if at.everybody:
            return tree
        stacked, pools, together = apart(tree)
        return together(take(stacked, at.cohort), pools)

    def put(self, tree: PyTree, at: RoundContext, rows: PyTree) -> PyTree:
        """The tree with the cohort's rows replaced; other clients' rows stay."""
        return rows if at.everybody else put(tree, at.cohort, rows)

    def broadcast(self, tree: PyTree) -> PyTree:
        """The same tree for every client, stacked on axis 0."""
        return broadcast(tree, self.num_clients)

    def for_cohort(self, fn: Callable, at: RoundContext, *stacked: PyTree, shared: tuple = ()) -> PyTree:
        """Apply `fn(data: ClientData, key, *rows, *shared)` to every client of the cohort, each with its own key.

        A client's key depends on its index, and not on which other clients were sampled.
        """
        data = ClientData(*self.take((self.data.x, self.data.y, self.data.size, self.data.budget), at))
        keys = jax.vmap(jax.random.fold_in, (None, 0))(at.key, at.cohort)
        return self.for_clients(fn, data, keys, *stacked, shared=shared)

    def for_clients(self, fn: Callable, *stacked: PyTree, shared: tuple = ()) -> PyTree:
        """Apply `engine.for_clients` with this problem's executor."""
        return for_clients(fn, *stacked, shared=shared, executor=self.executor, clients_at_once=self.clients_at_once)

    # --- messages ---------------------------------------------------------------------------------------------------

    def downlink(self, message: PyTree) -> PyTree:
        """Send the server's message to each client of the cohort; it arrives unchanged, and its bytes are counted."""
        count("down", message, None)
        return message

    def transmit(
        self, at: RoundContext, sent: PyTree, *, ways: tuple[str, ...] = ("up",), packed: PyTree = None
    ) -> PyTree:
        """What is received of every client's message, leaves `[m, ...]`: clipped, noised, quantised, and counted.

        `packed`: the shapes of one message as it is sent, where it is sent in fewer numbers than it is computed with.
        """
        whole = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), sent)
        for way in ways:
            count(way, whole if packed is None else packed, self.channel)
        if self.channel is None or (self.channel.clip is None and self.channel.bits is None):
            return sent
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(at.key, _CHANNEL), at.cohort)
        return self.for_clients(lambda sent, key, channel: channel(sent, key), sent, keys, shared=(self.channel,))

    def arrived(self, at: RoundContext) -> Bool[Array, " m"]:
        """Which clients' messages to the server were sent and arrived in this round, `[m]`."""
        sampled = at.cohort < self.num_clients
        if self.channel is None or self.channel.loss is None:
            return sampled
        channel = self.channel
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(at.key, _CHANNEL + 1), at.cohort)
        return sampled & jax.vmap(lambda key: channel.arrivals(key, ()))(keys)

    def weights(self, at: RoundContext, own: Shaped[Array, " m"] | None = None) -> Shaped[Array, " m"]:
        """The weight of each client of the cohort in the server's average, `[m]`; 0 where its message did not arrive.

        These are the problem's `weight` where it has one (see `fusion`), else the algorithm's `own [m]`; None: the
        client's training rows.
        """
        if self.weight is not None:
            own = self.take(jnp.asarray(self.weight), at)
        elif own is None:
            own = self.take(jnp.asarray(self.data.size), at)
        return jnp.where(self.arrived(at), own, 0)

    def total_weight(self) -> jax.Array | int:
        """The total weight of all clients: equal weights, or the problem's."""
        return self.num_clients if self.weight is None else jnp.sum(self.weight)

    def if_arrived(self, at: RoundContext, new: PyTree, old: PyTree) -> PyTree:
        """Rows of the cohort: `new` where the client's message to the server arrives in this round, else `old`."""
        if self.channel is None or self.channel.loss is None:
            return new
        heard = self.arrived(at)
        return jax.tree.map(lambda n, o: jnp.where(heard.reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old)

    def uplink(self, at: RoundContext, changes: PyTree, own_weights: Shaped[Array, " m"] | None = None) -> PyTree:
        """The server's weighted mean of the clients' messages `[m, ...]` that arrive.

        Clients send changes. So the mean is 0, and nothing changes at the server, where no message arrives.
        """
        received = self.transmit(at, changes)
        return average(received, self.weights(at, own_weights), order=at.order())

    def exchange(self, at: RoundContext, stacked: PyTree) -> PyTree:
        """The mean M_i[x_j] of the neighbours' messages that arrive, for every client.

        Leaves `[N, ...]`. A client that receives nothing uses its own value.
        """
        return self.neighbours(at, self.transmit(at, stacked, ways=("up", "down")), stacked)

    def neighbours(self, at: RoundContext, received: PyTree, own: PyTree) -> PyTree:
        """The result of `exchange` from messages already received; each link loses messages independently."""
        matrix = self.heard(at, self.graph.neighbour_mean)
        if self.channel is None or self.channel.loss is None:
            return self.over_links(matrix, received)
        total = matrix.sum(1)
        mean = self.over_links(matrix / jnp.where(total > 0, total, 1)[:, None], received)
        heard = jax.tree.map(lambda leaf: (total > 0).reshape(-1, *[1] * (leaf.ndim - 1)), own)
        return jax.tree.map(jnp.where, heard, mean, own)

    def mix(self, at: RoundContext, stacked: PyTree, matrix: Float[Array | np.ndarray, "N N"]) -> PyTree:
        """Mix over the graph: sum_j matrix[i, j] x_j, with rows that sum to one.

        A client's own value is exact, and its neighbours' values are used as received. Leaves `[N, ...]`. The weight of
        a lost message goes to the client's own value.
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
        """The matrix with 0 for every link that loses its message in this round, independently of other links."""
        matrix = jnp.asarray(matrix)
        if self.channel is None or self.channel.loss is None:
            return matrix
        return jnp.where(self.channel.arrivals(jax.random.fold_in(at.key, _CHANNEL + 1), matrix.shape), matrix, 0)

    def over_links(self, matrix: Float[Array | np.ndarray, "N N"], stacked: PyTree) -> PyTree:
        """The sum sum_j matrix[i, j] x_j over client i and its neighbours, with leaves `[N, ...]`.

        It is cheap where neighbours are few.
        """
        matrix = jnp.asarray(matrix)
        if self.graph.neighbours is None:
            return combine(matrix, stacked, spread=True)
        index = jnp.concatenate([jnp.arange(self.num_clients)[:, None], self.graph.neighbours], axis=1)
        value = jnp.take_along_axis(matrix, index, axis=1, mode="fill", fill_value=0)
        return combine(Sparse(index, value), stacked, spread=True)
