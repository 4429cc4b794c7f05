"""A problem small enough to compute by hand: two clients, one-dimensional quadratics. And what every test runs."""

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from fedlab_lite.data import Federated
from fedlab_lite.engine import History, Problem, RoundContext, Task, make_graph
from fedlab_lite.engine.training import places
from fedlab_lite.nn import make_model
from fedlab_lite.plots import style
from fedlab_lite.runs import Settings

KEY = jax.random.key(0)


@dataclass(frozen=True)
class ScalarModel:
    """theta scales the first entry of x, w the second: 'logit' = theta x_0 + w x_1. No projection."""

    theta: float = 0.0
    w: float = 0.0

    name = "scalar"
    constrained = False

    def init(self, key):
        return {"representation": {"theta": jnp.float32(self.theta)}, "head": {"w": jnp.float32(self.w)}}

    def represent(self, params, x, *, key=None, budget=None):
        return jnp.stack([params["representation"]["theta"] * x[:, 0], x[:, 1]], axis=1)

    def classify(self, head, features, *, key=None):
        return features[:, 0] + head["w"] * features[:, 1]

    def forward(self, params, x, *, key=None, z0=None, budget=None):
        return self.apply(params, x), None

    def equilibrium_shape(self):
        return None

    def apply(self, params, x):
        return self.classify(params["head"], self.represent(params, x))

    def project(self, representation):
        return representation


class Quadratic(Task):
    """Loss of a row: (logit - y)^2 / 2, so a client with rows x = (1, 1) pulls theta + w to its mean y."""

    headline = "distance"

    def row_loss(self, outputs, y):
        return (outputs - y) ** 2 / 2

    def metrics(self, outputs, y):
        return {"distance": jnp.abs(outputs - y)}


def quadratic_problem(targets, sizes, *, theta=0.0, w=0.0, executor="map"):
    """Client i has `sizes[i]` rows, all x = (1, 1), all y = `targets[i]`."""
    n, rows = len(targets), max(sizes)
    y = np.zeros((n, rows), np.float32)
    x = np.zeros((n, rows, 2), np.float32)
    for i, (target, size) in enumerate(zip(targets, sizes, strict=True)):
        x[i, :size], y[i, :size] = 1.0, target
    size = np.array(sizes, np.int32)
    data = Federated(x, y, size, x, y, size, np.zeros((0, 2), np.float32), "quadratic", "made by a test", 2)
    return Problem(data, ScalarModel(theta, w), executor, task=Quadratic())


def blobs(num_clients=5, classes=3, seed=0, sizes=None, shape=(6,), model="mlp", executor="map", **options):
    """Ragged clients of Gaussian classes in a few dimensions, and a small model on them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, *shape)) * 2
    sizes = sizes or rng.integers(7, 30, num_clients)

    def draw(size):
        y = rng.integers(0, classes, size)
        return (centres[y] + rng.normal(size=(size, *shape))).astype(np.float32), y

    train, test = [draw(n) for n in sizes], [draw(12) for _ in sizes]
    data = Federated.stack(train, test, name="blobs", source="made by a test", num_classes=classes)
    options = options or {"width": 16, "depth": 1, "features": 8}
    data = replace(data, shared_x=draw(24)[0])
    graph = make_graph("ring", len(sizes)) if len(sizes) > 1 else None
    return Problem(data, make_model(model, shape, classes, **options), executor, graph=graph)


@functools.cache
def common_problem(name):
    """The problem of the tests that every algorithm passes: blobs, with a network that this one takes."""
    return blobs(model="gaussian_mlp", width=16, depth=1, features=8, latent=4) if name == "fedcr" else blobs()


def some(*clients, key=KEY):
    """A first round with these clients."""
    return RoundContext(jnp.int32(0), jnp.array(clients), key)


# An algorithm's numbers, the problem's arrays, cohort and key are arguments: what tests of one process run with the
# same shapes is traced and compiled once.


@jax.jit
def init_program(algorithm, problem, key):
    return algorithm.init(problem, key)


@jax.jit
def round_program(algorithm, problem, state, cohort, key):
    new = algorithm.round(problem, state, problem.at(jnp.int32(0), cohort, key))
    return jax.lax.with_sharding_constraint(new, places(algorithm, problem, new, 1))


def init(algorithm, problem, key=KEY):
    """A state where a round leaves it, so that the next finds its program compiled."""
    state = init_program(algorithm, problem, key)
    return jax.device_put(state, places(algorithm, problem, state, 1))


def step(algorithm, problem, state, cohort, key=KEY):
    """A round as training makes it."""
    return round_program(algorithm, problem, state, cohort, key)


def cohort_of(algorithm, problem, cohort):
    """The given clients, or all where each round of the algorithm needs all."""
    return jnp.arange(problem.num_clients) if algorithm.needs_all_clients else jnp.asarray(cohort)


def run_rounds(algorithm, problem, rounds, cohort):
    state, cohort = init(algorithm, problem), cohort_of(algorithm, problem, cohort)
    for t in range(rounds):
        state = step(algorithm, problem, state, cohort, jax.random.fold_in(KEY, t))
    return state


def largest_gap(a, b):
    """The largest difference of two trees, entry by entry."""
    gaps = jax.tree.map(lambda x, y: float(np.abs(np.asarray(x, float) - np.asarray(y, float)).max(initial=0)), a, b)
    return max(jax.tree.leaves(gaps))


def assert_equal(a, b):
    """The same bits in two trees."""
    jax.tree.map(np.testing.assert_array_equal, a, b)


def history(values, seeds=(0, 1), seconds=2.0, **settings) -> History:
    values = np.asarray(values, np.float32)
    return History(
        seeds=seeds,
        num_rounds=values.shape[1] - 1,
        about={"dataset": "digits", "model": "mlp", "algorithm": "fedavg"},
        settings=Settings(num_rounds=values.shape[1] - 1, seeds=seeds, **settings),
        rounds=np.arange(values.shape[1]),
        metrics={"accuracy": values},
        client_curves=values[:, :, None],
        diverged=(False, False),
        message_bytes={"up": 4, "down": 4},
        num_params={"representation": 1, "head": 1},
        seconds=seconds,
        data_source="made by a test",
        data_fingerprint="0",
        device="1 x abacus",
        versions={"jax": "1", "fedlab_lite": "0.1.0"},
    )


def drawn(runs):
    """A figure of these runs' curves."""
    import matplotlib.pyplot as plt

    style.use_style()
    fig, ax = plt.subplots()
    style.curves(runs, ax=ax, scale=100)
    plt.close(fig)
    return fig


def unlabelled(fig) -> list[str]:
    """Describe lines whose marker or line style is in no legend of the figure; empty if there is none.

    A line that is labelled by text beside it or by its axis is marked with `line.set_gid("labelled")`.
    """
    legends = [*fig.legends, *(legend for ax in fig.axes if (legend := ax.get_legend()))]

    def style(line) -> tuple[str, str]:
        return str(line.get_marker()), str(line.get_linestyle())

    handles = [handle for legend in legends for handle in legend.legend_handles if hasattr(handle, "get_marker")]
    known = {style(handle) for handle in handles}
    plain = ("None", "-")
    return [
        f"{ax.get_title() or 'a panel'}: marker {style(line)[0]}, line {style(line)[1]}"
        for ax in fig.axes
        for line in ax.lines
        if line.get_visible()
        and len(line.get_xdata())
        and style(line) not in known | {plain}
        and line.get_gid() is None
    ]


@st.composite
def random_graphs(draw):
    num_clients = draw(st.integers(2, 24))
    most = num_clients * (num_clients - 1) // 2
    num_edges = draw(st.integers(num_clients - 1, most))
    return make_graph("random", num_clients, num_edges=num_edges, seed=draw(st.integers(0, 10_000)))


def tree_of(num_clients: int, seed: int = 0):
    """Stacked parameters of several shapes, one of them with one number per client."""
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = ((num_clients, 3, 2), (num_clients, 4), (num_clients,))
    w, b, scale = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    return {"layer": {"w": w, "b": b}, "rest": [scale]}


def shares(value, seeds=2, **settings):
    """Runs that end at this accuracy; every seed has its own rows."""
    run = history([[0.1, value, value]] * seeds, tuple(range(seeds)), **settings)
    return replace(run, diverged=(False,) * seeds, data_fingerprint=" ".join(map(str, range(seeds))))


def made(finals, *, start=0.1, rounds=40, clients=20, constant=0.1, seeds=None, rise=0.0, labels=2000, **changes):
    """One trajectory a final accuracy, settled after half of its rounds; the last quarter rises by `rise`.

    Every seed has its own rows.
    """
    finals = np.asarray(finals, float)
    at = np.arange(0, rounds + 1, 1)
    way = np.clip(at / (rounds / 2), 0, 1)
    curve = start + (finals[:, None] - start) * way + rise * np.clip(at / rounds - 0.75, 0, 1) * 4
    spread = np.linspace(-0.02, 0.02, clients)
    fields = {
        "seeds": tuple(range(len(finals))) if seeds is None else seeds,
        "num_rounds": rounds,
        "rounds": at,
        "metrics": {"accuracy": curve, "loss": 1 - curve, "accuracy_gap": curve / 10},
        "client_curves": curve[:, :, None] + spread,
        "diverged": (False,) * len(finals),
        "message_bytes": {},
        "num_params": {},
        "seconds": 1.0,
        "data_source": "made by a test",
        "data_fingerprint": " ".join(map(str, range(len(finals)))),
        "device": "1 x abacus",
        "versions": {},
        "about": {},
        "constant": constant,
        "test_labels": {"all": labels, "a client": labels // clients},
    }
    return History(**fields | changes)


def recorded(item, preset, **changes):
    """The content of a result's JSON."""
    return {
        "paper": item.paper,
        "item": item.stem,
        "claim": "it learns",
        "quote": "it learns",
        "where": "Sec. 1",
        "outcome": "agrees",
        "word": "agrees here",
        "scope": "reduced",
        "distance": {"num_rounds": {"here": [7], "paper": [100]}},
        "comparisons": {},
        "readings": {},
        "also": {},
        "rivals": [],
        "reason": "it learns, by 12 points",
        "preset": preset,
        "data_source": "made by a test",
        "parameters": {"preset": preset, "num_rounds": 7, "unknown": 1},
        "metrics": {"mlp": {"mean": 1234.5678, "std": 0.0, "n": 1}, "other": {"mean": 0.5, "std": 0.0, "n": 1}},
        "published": [{"name": "mlp", "value": 2000, "where": "Fig. 4"}],
        "shown": [],
        "seeds": [0],
        "departures": [],
        "constant_answer": {"mlp": 10.0},
        "notebook_hash": "0",
        "provenance": {"device": "1 x abacus", "seconds": 60.0, "versions": {}, "package_version": "0"},
    } | changes
