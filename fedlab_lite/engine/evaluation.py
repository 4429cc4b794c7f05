"""Evaluation: the results of every client's model on its test rows, and the bytes that cross the network."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Shaped

from fedlab_lite.engine.channel import counting
from fedlab_lite.engine.clients import rows_of
from fedlab_lite.engine.devices import to_host
from fedlab_lite.engine.local import ClientData, in_chunks
from fedlab_lite.engine.problem import Problem, RoundContext
from fedlab_lite.engine.task import check_labels
from fedlab_lite.util import InputError, choose


def evaluate(
    problem: Problem, own: dict, shared: dict, *, predictor: Callable | None = None, chunk: int = 100
) -> dict[str, Shaped[Array, " clients"]]:
    """Judge client i's model, `shared | own_i`, on client i's test rows.

    Args:
      own: the parts of the params that each client has of its own, leaves `[clients, ...]`.
      shared: the parts that are the same for all clients; stored once, whatever the number of clients.
      predictor: `predictor(problem, params, train: ClientData)` makes one client's `answer(x) -> (logits, solution)`
        with the help of its training rows; None: the model answers by itself. A pytree.
      chunk: rows per forward pass.

    Returns: arrays `[clients]`. The task's metrics and 'loss' are means over the test labels that count. For
      classification there is 'accuracy', a share (0-1). 'counted' is the number of these labels. Equilibrium models
      also have 'residual' (mean relative residual of the solver) and 'iterations', means over rows.

    Example:
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=80)
      >>> problem = Problem(data, make_model("mlp", data.input_shape, data.num_classes, width=8, depth=1))
      >>> sorted(evaluate(problem, {}, problem.model.init(jax.random.key(0))))  # one untrained model for all
      ['accuracy', 'counted', 'loss']
    """
    data = problem.data

    def judge(test: ClientData, own: dict, train: tuple, shared: dict, predictor) -> dict[str, jax.Array]:
        params = shared | own
        answer = predictor(problem, params, *train) if train else partial(problem.model.forward, params)

        def rows(batch):
            x, y = batch
            outputs, solution = answer(x)
            counted = problem.task.counted(y, jnp.ones(y.shape[0]))
            labels = problem.task.metrics(outputs, y) | {"loss": problem.task.row_loss(outputs, y)}
            choose(f"headline of task {type(problem.task).__name__}", problem.task.headline, labels)
            for name, values in labels.items():
                check_labels(problem.task, name, values, counted)
            labels = {name: values * counted for name, values in labels.items()} | {"counted": counted}
            result = {name: values.reshape(len(y), -1).sum(1) for name, values in labels.items()}
            if solution is not None:
                length = jax.vmap(optax.tree.norm)(solution.z)
                result["residual"] = solution.residual / jnp.maximum(length, jnp.finfo(length.dtype).tiny)
                result["iterations"] = solution.iterations.astype(jnp.float32)
            return result

        per_row = in_chunks(rows, (test.x, test.y), test.size, chunk)
        seen = jnp.arange(test.y.shape[0]) < test.size
        sums = {name: jnp.sum(jnp.where(seen, values, 0)) for name, values in per_row.items()}
        labels = jnp.maximum(sums["counted"], 1)
        divisors: dict[str, Any] = {"counted": 1, "residual": test.size, "iterations": test.size}
        return {name: value / divisors.get(name, labels) for name, value in sums.items()}

    test = ClientData(data.test_x, data.test_y, data.test_size)
    train = () if predictor is None else (ClientData(data.x, data.y, data.size),)
    if not data.common_test:
        return problem.for_clients(judge, test, own, train, shared=(shared, predictor), sizes=test.size, judging=True)

    def judge_alike(client, own: dict, train: tuple, test: ClientData, *shared):
        return judge(test, own, train, *shared)

    clients, test = jnp.arange(problem.num_clients), rows_of(test, 0)
    return problem.for_clients(judge_alike, clients, own, train, shared=(test, shared, predictor), judging=True)


def majority_baseline(problem: Problem) -> tuple[float, dict[str, int]]:
    """The accuracy of the majority baseline (always predicting the commonest class), and the number of test labels.

    Returns: the accuracy, a mean over clients. The class is the one for which this mean is largest. It is nan for a
      task whose headline is not an accuracy. Then the number of test labels that count: of 'all' clients, and of 'a
      client'.

    Example:
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=40, test_size=100)
      >>> majority_baseline(Problem(data, make_model("mlp", data.input_shape, data.num_classes)))[1]
      {'all': 100, 'a client': 25}
    """
    y, counted = _labels(problem, problem.data.test_y, problem.data.test_size)
    labels = {"all": int(counted.sum()), "a client": round(float(counted.sum(1).mean()))}
    if problem.task.headline != "accuracy":
        return float("nan"), labels
    return float(_label_shares(y, counted).max()), labels


def own_majority(problem: Problem) -> float:
    """The accuracy where each client's model always predicts the commonest label of its own training rows.

    A personal model can reach it without a look at its input. At least `majority_baseline`; nan where that is nan.

    Example:
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="by_label", classes_per_client=2, num_clients=5, train_size=100)
      >>> problem = Problem(data, make_model("mlp", data.input_shape, data.num_classes))
      >>> round(majority_baseline(problem)[0], 1), round(own_majority(problem), 1)
      (0.1, 0.5)
    """
    constant, data = majority_baseline(problem)[0], problem.data
    if problem.task.headline != "accuracy":
        return constant
    y, counted = _labels(problem, data.y, data.size)
    pairs = zip(y, counted, strict=True)
    commonest = np.array([np.bincount(labels, weights=seen, minlength=1).argmax() for labels, seen in pairs])
    y, counted = _labels(problem, data.test_y, data.test_size)
    right = ((y == commonest[:, None]) * counted).sum(1) / np.maximum(counted.sum(1), 1)
    return max(constant, float(right.mean()))


def has_own_models(problem: Problem, algorithm: Any) -> bool:
    """Whether clients are judged with models of their own; nothing is computed."""

    def own(algorithm: Any, problem: Problem, key: jax.Array) -> Any:
        return algorithm.models(problem, algorithm.init(problem, key), key)[0]

    models = jax.eval_shape(own, algorithm, problem, jax.random.key(0))
    return bool(jax.tree.leaves(models)) or algorithm.predictor() is not None


def constant_loss(problem: Problem) -> float:
    """The loss (nats) of the best constant prediction, the mean over clients: the entropy of the test labels.

    That prediction gives each class or character its share of the test labels, with equal weights of all clients. It is
    nan for a task that is not classification.

    Example:
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=40, test_size=400)
      >>> problem = Problem(data, make_model("mlp", data.input_shape, data.num_classes))
      >>> round(constant_loss(problem), 1), round(float(np.log(10)), 1)
      (2.3, 2.3)
    """
    if problem.task.headline != "accuracy":
        return float("nan")
    shares = _label_shares(*_labels(problem, problem.data.test_y, problem.data.test_size))
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def bigram_answer(problem: Problem) -> float:
    """The accuracy of predicting each character's commonest follower: the baseline of bigrams for a model of text.

    Followers are counted in all clients' training rows. A model above this baseline knows more than which character
    follows which.

    Returns: the accuracy on the test labels that count, a share (0-1), the mean over clients.
    Raises: `InputError` for data that are not text.

    Example:
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("roles", partition="natural", num_clients=4, train_size=400, test_size=200)
      >>> problem = Problem(data, make_model("transformer4", data.input_shape, data.num_classes))
      >>> majority_baseline(problem)[0] < bigram_answer(problem) < 1
      True
    """
    data = problem.data
    if data.task != "next_character":
        raise InputError(f"a bigram model predicts the next character of a text, but {data.name} is for {data.task}")
    y, counted = _labels(problem, data.y, data.size)
    followers = np.zeros((data.num_classes, data.num_classes))
    np.add.at(followers, (to_host(jnp.asarray(data.x)).reshape(y.shape), y), counted)
    y, counted = _labels(problem, data.test_y, data.test_size)
    right = counted * (followers.argmax(1)[to_host(jnp.asarray(data.test_x)).reshape(y.shape)] == y)
    return float((right.sum(1) / np.maximum(counted.sum(1), 1)).mean())


def _labels(problem: Problem, y: ArrayLike, size: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """All labels, one row per client, and which of them count."""
    y, size = to_host(jnp.asarray(y)), to_host(jnp.asarray(size))
    seen = np.arange(y.shape[1]) < size[:, None]
    rows = jnp.asarray(y.reshape(-1, *y.shape[2:])), jnp.asarray(seen.ravel(), jnp.float32)
    counted = np.asarray(problem.task.counted(*rows)).reshape(len(y), -1)
    return y.reshape(len(y), -1), counted


def _label_shares(y: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The share of each label, the mean over clients."""
    shares = np.zeros((len(y), int(y.max(initial=0)) + 1))
    np.add.at(shares, (np.arange(len(y))[:, None], y), counted)
    shares /= np.maximum(counted.sum(1, keepdims=True), 1)
    return shares.mean(0)


def message_bytes(problem: Problem, algorithm: Any) -> dict[str, int]:
    """The bytes that one client of the cohort sends ('up') and receives ('down') per round.

    Without a server, they are the bytes over one link. They are counted on the trees that pass the channel when a round
    is traced. Nothing is computed.

    Example:
      >>> from fedlab_lite.algorithms import FedAvg
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=80)
      >>> problem = Problem(data, make_model("mlp", data.input_shape, 10, width=8, depth=1, features=8))
      >>> message_bytes(problem, FedAvg())  # 6,442 parameters of 4 bytes
      {'up': 25768, 'down': 25768}
    """
    return _messages(problem, algorithm, pieces=False)


def message_count(problem: Problem, algorithm: Any) -> dict[str, int]:
    """The number of messages that one client sends ('up') and receives ('down') per round.

    Each message is clipped and noised separately, and each costs privacy.
    """
    return _messages(problem, algorithm, pieces=True)


def _messages(problem: Problem, algorithm: Any, pieces: bool) -> dict[str, int]:
    leaves, structure = jax.tree.flatten((problem, algorithm))
    return dict(_traced_messages(structure, tuple(map(jax.typeof, leaves)), pieces))


@lru_cache(maxsize=256)
def _traced_messages(structure: Any, shapes: tuple, pieces: bool) -> dict[str, int]:
    """The messages of a traced round; one trace serves all runs that differ in numbers only."""
    problem, algorithm = jax.tree.unflatten(structure, shapes)
    key = jax.random.key(0)
    state = jax.eval_shape(lambda algorithm, *given: algorithm.init(*given), algorithm, problem, key)
    at = RoundContext(jnp.int32(0), jnp.arange(problem.num_clients), key)
    with counting(pieces=pieces) as found:
        jax.eval_shape(lambda algorithm, *given: algorithm.round(*given), algorithm, problem, state, at)
    return found
