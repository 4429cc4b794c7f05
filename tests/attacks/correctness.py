"""Section F: rounds of every algorithm against NumPy on random rows, and other numbers that can be computed twice."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import algorithms.test_rounds_in_numpy as rounds_in_numpy
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from attacks.cases import Outcome, holds, units
from fedlab_lite.algorithms import fedopt
from fedlab_lite.analysis import linear_cka
from fedlab_lite.data import federated
from fedlab_lite.deq import SOLVERS, equilibrium, project_linf
from fedlab_lite.engine import GRAPHS, make_graph
from fedlab_lite.engine.averaging import average


def calls_of(module: ModuleType) -> Iterator[tuple[str, Callable[[], None]]]:
    """The tests of a module that need no fixture but `monkeypatch`, one call for each of their parameters."""
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        marks = [mark.args for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        for values in itertools.product(*(of for _, of in marks)):
            given: dict[str, Any] = {}
            for (names, _), value in zip(marks, values, strict=True):
                single = isinstance(names, str) and "," not in names
                given |= {names: value} if single else dict(zip(names, value, strict=True))
            yield f"{name}{list(given.values()) or ''}", partial(_patched, function, given)


def _patched(function: Callable, given: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        extra = {"monkeypatch": patch} if "monkeypatch" in inspect.signature(function).parameters else {}
        function(**given, **extra)


def other_rows(seed: int) -> None:
    """Other rows, labels, initial parameters and keys in the reference, in place: every module sees them."""
    rng = np.random.default_rng([11, seed])
    for array in (reference.X, reference.THETA, reference.W):
        array[:] = rng.normal(size=array.shape)
    reference.Y[:] = rng.permutation(reference.CLASSES)[reference.Y]
    rounds_in_numpy.KEYS[:] = [jax.random.key(int(number)) for number in rng.integers(0, 2**31, 2)]
    helpers.init_program.clear_cache()  # it holds the parameters as constants


def rounds_on_random_rows(seed: int) -> Iterator[Outcome]:
    other_rows(seed)
    for name, call in calls_of(rounds_in_numpy):
        yield holds(f"{name}, rows {seed}", call)


# --- numbers that can be computed twice -------------------------------------------------------------------------------


def solved(seed: int) -> None:
    """Fixed points, and gradients through them, against dense solves in float64."""
    rng = np.random.default_rng(seed)
    n, radius, solver = int(rng.integers(2, 9)), rng.uniform(0.1, 0.9), rng.choice([*SOLVERS])
    q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    A, b = (q * rng.uniform(-radius, radius, n)) @ q.T, rng.normal(size=(1, n))
    want = np.linalg.solve(np.eye(n) - A, b[0])
    options = {"solver": str(solver), "tol": 1e-6, "backward_tol": 1e-6, "max_iter": 300, "backward_max_iter": 300}

    def total(A: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = equilibrium(lambda A, b, z: z @ A.T + b, A, b, jnp.zeros_like(b), **options)[0]
        return jnp.sum(z**2) / 2, z

    (_, z), slopes = jax.value_and_grad(total, (0, 1), has_aux=True)(jnp.float32(A), jnp.float32(b))
    scale = np.linalg.norm(want) + 1
    assert np.abs(np.asarray(z[0]) - want).max() < 2e-4 * scale, "the fixed point"
    u = np.linalg.solve(np.eye(n) - A.T, want)
    assert np.abs(np.asarray(slopes[1][0]) - u).max() < 2e-3 * (np.linalg.norm(u) + 1), "the gradient by b"
    assert np.abs(np.asarray(slopes[0]) - np.outer(u, want)).max() < 2e-3 * scale * (np.linalg.norm(u) + 1), "by A"


def averaged(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 12))
    rows, weights = rng.normal(size=(m, 3, 2)), rng.integers(0, 50, m)
    weights[rng.integers(m)] += 1
    got = average({"a": jnp.float32(rows)}, jnp.asarray(weights))
    np.testing.assert_allclose(got["a"], np.average(rows, 0, weights), atol=2e-6)


def servers(seed: int) -> None:
    """FedAdagrad, FedAdam and FedYogi over ten rounds, as printed; no change of the clients is no change."""
    rng = np.random.default_rng(seed)
    kind, lr, b1, b2, tau = str(rng.choice(["adagrad", "adam", "yogi"])), *rng.uniform(0.01, 0.99, 4)
    server = fedopt(kind, float(lr), b1=float(b1), b2=float(b2), tau=float(tau))
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    got, state = jnp.zeros(3), server.init(jnp.zeros(3))
    for _ in range(10):
        change = rng.normal(size=3) * rng.integers(0, 2)
        m, square = b1 * m + (1 - b1) * change, change**2
        adam, yogi = b2 * v + (1 - b2) * square, v - (1 - b2) * square * np.sign(v - square)
        v = {"adagrad": v + square, "adam": adam, "yogi": yogi}[kind]
        x = x + lr * m / (np.sqrt(v) + tau)
        updates, state = server.update(jnp.float32(-change), state)
        got = got + updates
    np.testing.assert_allclose(got, x, rtol=2e-4, atol=2e-5)


def graphs(seed: int) -> None:
    """Mixing matrices against their formulas, entry by entry."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 15))
    graph = make_graph(str(rng.choice(GRAPHS)), n, seed=seed)
    A = np.asarray(graph.adjacency, float)
    degree = A.sum(1)
    want = np.array([[A[i, j] / (1 + max(degree[i], degree[j])) for j in range(n)] for i in range(n)])
    np.testing.assert_allclose(graph.metropolis, want + np.diag(1 - want.sum(1)), atol=1e-6)
    np.testing.assert_allclose(graph.neighbour_mean, A / degree[:, None], atol=1e-6)
    np.testing.assert_allclose(graph.uniform, (A + np.eye(n)) / (1 + degree[:, None]), atol=1e-6)
    assert (A == A.T).all()
    assert np.linalg.matrix_rank(np.asarray(graph.laplacian, float)) == n - 1, "not connected"


def projected(seed: int) -> None:
    """The projection: its rows have an l1 norm of at most kappa, and those inside it stay."""
    rng = np.random.default_rng(seed)
    B, kappa = rng.normal(size=(4, int(rng.integers(1, 9)))) * 10.0 ** rng.integers(-2, 3), rng.uniform(0.1, 0.95)
    got = np.asarray(project_linf(jnp.float32(B), float(kappa)), float)
    for row, found in zip(B, got, strict=True):
        low, high = 0.0, np.abs(row).max()
        for _ in range(200):  # the threshold by bisection
            middle = (low + high) / 2
            low, high = (middle, high) if np.maximum(np.abs(row) - middle, 0).sum() > kappa else (low, middle)
        want = row if np.abs(row).sum() <= kappa else np.sign(row) * np.maximum(np.abs(row) - high, 0)
        np.testing.assert_allclose(found, want, atol=2e-5 * max(1, np.abs(row).max()))


def similar(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 5))
    x, y = x - x.mean(0), y - y.mean(0)
    want = np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    np.testing.assert_allclose(linear_cka(jnp.float32(x), jnp.float32(y)), want, rtol=1e-4)


def divided(seed: int) -> None:
    """Every partition gives each row to one client, and each keeps its label."""
    rng = np.random.default_rng(seed)
    n, clients, classes = int(rng.integers(60, 200)), int(rng.integers(1, 7)), int(rng.integers(2, 5))
    x, y = np.arange(n)[:, None].astype(np.float32), rng.permutation(n) % classes
    kind = str(rng.choice(["iid", "by_label", "dirichlet", "natural"]))
    whose = (
        {"owners": rng.integers(0, clients, n)} if kind == "natural" else {"partition": kind, "num_clients": clients}
    )
    data = federated(x, y, **whose, classes_per_client=min(2, classes), alpha=float(rng.uniform(0.1, 5)), seed=seed)
    pairs = [(data.x, data.y, data.size), (data.test_x, data.test_y, data.test_size)]
    seen = [
        (int(a), int(b))
        for xs, ys, sizes in pairs
        for x, y, k in zip(xs, ys, sizes, strict=True)
        for a, b in zip(x[:k, 0], y[:k], strict=True)
    ]
    assert len({row for row, _ in seen}) == len(seen), "a row of two clients"
    assert all(y[row] == label for row, label in seen), "a label of another row"
    assert len(seen) == n or kind in ("by_label",), f"{n - len(seen)} of {n} rows are with nobody ({kind})"


NUMBERS = {
    "solver": solved,
    "average": averaged,
    "server": servers,
    "graph": graphs,
    "projection": projected,
    "CKA": similar,
    "partition": divided,
}
DRAWS = {"solver": 40, "average": 100, "server": 60, "graph": 200, "projection": 100, "CKA": 60, "partition": 150}
TESTS = ("tests/engine/test_privacy.py", "tests/engine/test_channel.py", "tests/engine/test_mixing.py")


def cases(folder: Any, seed: int, share: float) -> Iterator[Outcome]:
    for what, attempt in NUMBERS.items() if share > 0.1 else list(NUMBERS.items())[1:]:  # a solver has to be compiled
        for number in range(seed, seed + math.ceil(DRAWS[what] * share)):
            yield holds(f"{what} {number}", partial(attempt, number), may_refuse=what == "partition")
    if share == 1:
        for number in range(seed + 1, seed + 3):
            yield from rounds_on_random_rows(number)
        yield from units(*TESTS)
