"""Section H: what users of such packages report: few rows, odd labels and types, graphs, solvers, pictures."""

import math
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from nn.test_models import SMALL

import fedlab_lite as fl
from attacks.cases import Outcome, ends, holds, units
from fedlab_lite.algorithms import DisPFL, FedAvg, FedPer, KNNPer, make_algorithm
from fedlab_lite.data import federated, npz
from fedlab_lite.deq import equilibrium, fixed_point
from fedlab_lite.engine import Channel, Graph, make_graph
from fedlab_lite.nn import MODELS, make_model
from fedlab_lite.util import InputError

RNG = np.random.default_rng(3)


# --- the same picture in every type, for every network ----------------------------------------------------------------

Form = tuple[Callable[[np.ndarray], np.ndarray], float]  # how pictures are saved, and their white
FORMS: dict[str, Form] = {
    "uint16": (lambda x: x.astype(np.uint16) * 257, 65535),
    "float32, 0 to 1": (lambda x: (x / 255).astype(np.float32), 1),
    "float64, 0 to 255": (lambda x: x.astype(float), 255),
    "16 bits": (lambda x: (x * 257.0 + RNG.integers(-60, 61, x.shape)).clip(0, 65535).astype(np.uint16), 65535),
    "12 bits": (lambda x: np.rint(x / 255 * 4095).astype(np.uint16), 4095),
    "float32 of a scanner": (lambda x: (x / 255 + RNG.uniform(-1e-3, 1e-3, x.shape)).clip(0, 1).astype(np.float32), 1),
}
NETWORKS = {name: SMALL.get(name, {}) for name in MODELS if not name.startswith(("transformer", "deq_transformer"))}
NETWORKS |= {"deq_resnet_m": {"channels": 8}, "resnet20": {"width": 8}, "resnet34": {"width": 8}, "dnn_wide": {}}
NETWORKS |= {name: {"width": 4} for name in ("vgg11", "alexnet", "alexnet_small")}
NETWORKS |= {"gaussian_mlp": {"width": 16}, "gaussian_cnn5": {"features": 16}, "norm_cnn": {"features": 16}}


def pictures_as(form: str, x: np.ndarray) -> np.ndarray:
    """What networks get of pictures that are saved in this form."""
    change, white = FORMS.get(form, (lambda x: x, 255))
    file = npz.own_file("pictures")
    file.parent.mkdir(parents=True, exist_ok=True)
    y = np.arange(len(x)) % 2
    np.savez(file, x_train=change(x), y_train=y, x_test=change(x[:4]), y_test=y[:4], x_range=[0, white])
    os.utime(file, ns=(0, int(RNG.integers(1e18))))
    return np.asarray(federated("pictures", partition="iid", num_clients=1).x[0])


def same_answers(name: str) -> Iterator[Outcome]:
    """A network gives the same answers for the same pictures, in whatever type they are saved."""
    x = RNG.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    try:
        model = make_model(name, (32, 32, 3), 5, **NETWORKS[name])
    except InputError as error:
        yield Outcome(f"{name} makes no network", str(error))
        return
    params = model.init(jax.random.key(0))
    apply = jax.jit(model.apply)
    want = apply(params, jnp.asarray(pictures_as("uint8", x)))
    for form in FORMS:

        def attempt(form=form) -> None:
            got = apply(params, jnp.asarray(pictures_as(form, x)))
            gap = float(jnp.abs(got - want).max() / (jnp.abs(want).max() + 1e-6))
            assert gap < 0.05, f"other answers, by {gap:.2g} of the largest"

        yield holds(f"{name}, pictures as {form}", attempt)


# --- few rows, odd labels, odd types ----------------------------------------------------------------------------------


def trains(x: Any, y: Any, *, algorithm: Any = None, **options: Any) -> None:
    """Two rounds of training give finite numbers."""
    data = federated(x, y, **options)
    problem = fl.Problem(data, make_model("mlp", data.input_shape, data.num_classes, width=4, depth=1))
    history, _ = fl.train(problem, algorithm or FedAvg(lr=0.1, epochs=1), num_rounds=2)
    assert np.isfinite(history.metrics["loss"]).all()
    assert history.metrics["accuracy"].shape == (1, 3)


X, Y = RNG.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4
IID = {"partition": "iid", "num_clients": 2}
WORKS: dict[str, Callable[[], object]] = {  # what is unusual, and right
    "Dirichlet with few rows": lambda: trains(X, Y, partition="dirichlet", num_clients=2, alpha=0.5),
    "one client": lambda: trains(X, Y, partition="iid", num_clients=1),
    "labels as a column of int8": lambda: trains(X, Y.astype(np.int8), **IID),
    "labels as uint64": lambda: trains(X, Y.astype(np.uint64), **IID),
    "rows of float16": lambda: trains(X.astype(np.float16), Y, **IID),
    "rows of bool": lambda: trains(X > 0, Y, **IID),
    "rows in Fortran's order": lambda: trains(np.asfortranarray(X), Y, **IID),
    "rows of another byte order": lambda: trains(X.astype(">f8"), Y.astype(">i4"), **IID),
    "rows that are a view": lambda: trains(X[::-1], Y[::-1], **IID),
    "rows of JAX": lambda: trains(jnp.asarray(X), jnp.asarray(Y), **IID),
    "lists": lambda: trains(X.tolist(), Y.tolist(), **IID),
    "owners as numbers of any size": lambda: trains(X, Y, owners=(Y % 2) * 10**12),
    "owners as words": lambda: trains(X, Y, owners=np.array(["é", "b", "文", "d"])[Y]),
    "more classes than labels": lambda: trains(X, Y, num_classes=9, **IID),
    "a batch larger than all rows": lambda: trains(X, Y, algorithm=FedAvg(batch_size=10**6), **IID),
    "one row per client to train on": lambda: trains(X[:8], Y[:8] % 2, owners=np.arange(8) % 4),
    "a graph from a matrix": lambda: make_graph_of(np.ones((3, 3), int) - np.eye(3, dtype=int), 3),
    "a graph of words": lambda: make_graph_of(networkx_graph([("a", "b"), ("b", "c")]), 3),
    "a graph with an edge twice": lambda: make_graph_of([(0, 1), (1, 0), (1, 2)], 3),
}


def make_graph_of(edges: Any, clients: int) -> None:
    graph = Graph.from_edges(edges, clients)
    np.testing.assert_allclose(np.asarray(graph.metropolis).sum(0), 1, atol=1e-6)


def networkx_graph(edges: list) -> Any:
    import networkx

    return networkx.Graph(edges)


NAN = X.copy()
NAN[3, 1] = np.nan
REFUSED: dict[str, tuple[Callable[[], object], str]] = {  # what cannot be, and what its error says
    "Dirichlet with hardly any": (
        lambda: trains(X, Y, partition="dirichlet", num_clients=8, alpha=0.05),
        "larger alpha",
    ),
    "more clients than rows": (lambda: trains(X, Y, partition="iid", num_clients=99), "client"),
    "no rows": (lambda: trains(X[:0], Y[:0], **IID), "no rows"),
    "no passes": (lambda: trains(X, Y, algorithm=FedAvg(epochs=0), **IID), "at least 1"),
    "rows of NaN": (lambda: trains(NAN, Y, **IID), "nan"),
    "labels from 1": (lambda: trains(X, Y + 1, **IID), "labels"),
    "labels as words": (lambda: trains(X, np.array(["a", "b", "c", "d"])[Y], **IID), "labels are whole numbers"),
    "labels as floats": (lambda: trains(X, Y + 0.5, **IID), "labels are whole numbers"),
    "labels as one-hot rows": (lambda: trains(X, np.eye(4, dtype=int)[Y], **IID), "one label per row"),
    "labels below 0": (lambda: trains(X, Y - 1, **IID), "must lie in"),
    "rows and labels of other lengths": (lambda: trains(X, Y[:-1], **IID), "one row per sample"),
    "rows without columns": (lambda: trains(X[:, 0], Y, **IID), "one row per sample"),
    "rows of text": (lambda: trains(X.astype(str), Y, **IID), "convert"),
    "rows of complex numbers": (lambda: trains(X + 1j, Y, **IID), "convert"),
    "rows beyond int32": (lambda: trains(np.full((40, 2), 2**40), Y, **IID), "beyond int32"),
    "rows beyond float32": (lambda: trains(X.astype(float) * 1e300, Y, **IID), "beyond float32"),
    "an owner with one row": (lambda: trains(X, Y, owners=np.minimum(np.arange(40), 30)), "has one row"),
    "owners of another length": (lambda: trains(X, Y, owners=[1, 2]), "owner"),
    "owners and a partition": (lambda: trains(X, Y, owners=Y, **IID), "owners decide"),
    "no partition": (lambda: trains(X, Y), "set partition"),
    "k = 30 neighbours of 16 rows": (lambda: trains(X, Y, algorithm=KNNPer(k=30), **IID), "neighbours"),
    "a class in place of an object": (lambda: trains(X, Y, algorithm=FedAvg, **IID), "FedAvg()"),
    "a graph with weights": (lambda: make_graph_of(np.full((3, 3), 0.5), 3), "weights|0 and 1"),
    "a matrix that is not symmetric": (lambda: make_graph_of(np.triu(np.ones((3, 3)), 1), 3), "symmetric"),
    "a graph in two parts": (lambda: make_graph_of([(0, 1), (2, 3)], 4), "not connected"),
    "a client beside the graph": (lambda: make_graph_of([(0, 1), (1, 5)], 3), "numbered"),
    "an edge to oneself": (lambda: make_graph_of([(0, 0), (0, 1), (1, 2)], 3), "itself"),
    "DisPFL with noise": (lambda: with_graph(DisPFL(), channel=Channel(1.0, 1.0)), "masks"),
    "a delta of 0.9": (lambda: fl.engine.noise_multiplier_for(1.0, 0.9, rounds=10, clients=20), "delta"),
    "a method without a server and no graph": (lambda: trains(X, Y, algorithm=make_algorithm("dpsgd"), **IID), "graph"),
    "no f": (lambda: equilibrium(lambda p, x, z: z[:, :1], 0.0, X, jnp.asarray(X)), "shapes"),
    "a budget of gmres": (
        lambda: equilibrium(lambda p, x, z: z, 0.0, X, jnp.asarray(X), budget=3, backward_solver="gmres"),
        "budget",
    ),
}


def with_graph(algorithm: Any, **parts: Any) -> None:
    data = federated(X, Y, partition="iid", num_clients=4)
    model = make_model("mlp", data.input_shape, data.num_classes, width=4, depth=1)
    fl.train(fl.Problem(data, model, graph=make_graph("ring", 4), **parts), algorithm, num_rounds=1)


# --- solvers that do not converge, models on new rows -----------------------------------------------------------------


def solver_warns() -> None:
    """A backward solver that does not converge says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"backward_solver": "fixed_point", "max_iter": 2000}
        jax.grad(
            lambda a: equilibrium(lambda a, x, z: a * z + x, a, jnp.ones((1, 1)), jnp.zeros((1, 1)), **options)[0].sum()
        )(0.99)
    assert any("backward solver" in str(each.message) for each in caught)


def diverging() -> None:
    """A run that diverges says so."""
    data = federated(X * 1e3, Y, **IID)
    problem = fl.Problem(data, make_model("mlp", data.input_shape, data.num_classes, width=16))
    history, _ = fl.train(problem, FedAvg(lr=1e6), num_rounds=3)
    assert history.diverged == (True,), history.diverged
    assert "diverged" in repr(history)


def not_solved() -> None:
    found = fixed_point(lambda z: 2 * z + 1, jnp.ones((2, 2)), max_iter=20)
    assert (found.residual > 0).all()
    assert np.isfinite(found.z).all()


def saved_and_used(folder: Path) -> None:
    """A saved model answers for new rows as the trained one does, for each client."""
    data = federated(X, Y, owners=Y % 2)
    problem = fl.Problem(data, make_model("mlp", data.input_shape, data.num_classes, width=4, depth=1))
    algorithm = FedPer(lr=0.1)
    _, state = fl.train(problem, algorithm, num_rounds=2)
    own, shared = algorithm.models(problem, jax.tree.map(lambda leaf: leaf[0], state), jax.random.key(0))
    loaded = fl.load(fl.save(folder / "saved", problem, algorithm, state))
    for client in range(2):
        params = shared | jax.tree.map(lambda leaf, i=client: leaf[i], own)
        want = np.asarray(jax.nn.softmax(problem.model.apply(params, X)))
        np.testing.assert_allclose(loaded.probabilities(X, client=client), want, atol=1e-6)


TESTS = (
    "tests/data/test_container.py",
    "tests/engine/test_graphs.py",
    "tests/nn/test_bad_models.py",
    "tests/engine/test_saved.py",
)


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    names = [*NETWORKS] if share == 1 else ["mlp", "vgg11"]
    for name in names:
        yield from same_answers(name)
    few = math.ceil(share * len(WORKS))
    for what, attempt in list(WORKS.items())[:few]:
        yield holds(what, attempt)
    for what, (attempt, words) in REFUSED.items():
        yield ends(what, attempt, words)
    yield holds("a backward solver that does not converge", solver_warns)
    yield holds("a map without a fixed point", not_solved)
    if share == 1:
        yield holds("a run that diverges", diverging)
        yield holds("a saved model", partial(saved_and_used, folder))
        yield from units(*TESTS)
