"""Section J: figures that would be replaced, integers that wrap, settings that are ignored, names in figures."""

import json
import math
import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from helpers import history, recorded

from attacks.cases import Outcome, ends, here, holds, units
from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.data import federated, npz
from fedlab_lite.deq import SOLVERS, adjoint_residual, equilibrium
from fedlab_lite.engine import GRAPHS
from fedlab_lite.papers import Item, book_pages
from fedlab_lite.plots import curves, federation, shared_legend
from fedlab_lite.runs import Settings, run, store
from fedlab_lite.util import files

ITEM = Item("fedeq", "fig04_mlp_vs_deq_mlp")
TINY = {"dataset": "digits", "partition": "iid", "num_clients": 4, "train_size": 40, "test_size": 20, "num_rounds": 1}
SMALL = {"model_options": {"width": 4, "depth": 1, "features": 4}}


# --- settings that would be ignored -----------------------------------------------------------------------------------


def settings_with_a_graph(name: str, graph: str) -> None:
    network = {"model": "gaussian_mlp"} if name == "fedcr" else {}
    run(Settings(**TINY | SMALL | network, algorithm=name, graph=graph, num_edges=None))


TOLERANCES = (float("nan"), -1.0, -1e-9, float("inf"))
OTHERS = ("x", None, 1j)  # of other types, which tests of the package check before
Z = jnp.ones((1, 2))


def by_equilibrium(name: str, value: Any) -> None:
    equilibrium(lambda p, x, z: 0.5 * z + x, 0.0, Z, Z, **{name: value})


def by_solver(solver: str, value: Any) -> None:
    SOLVERS[solver](lambda z: 0.5 * z + 1, Z, tol=value)


def by_settings(name: str, value: Any) -> None:
    Settings(model="deq_mlp", model_options={name: value})


def by_residual(value: Any) -> None:
    adjoint_residual(lambda p, x, z: 0.5 * z + x, 0.0, Z, Z, Z, backward_tol=value)


def tolerances(values: tuple) -> Iterator[Outcome]:
    for value in values:
        for name in ("tol", "backward_tol"):
            yield ends(f"equilibrium({name}={value})", partial(by_equilibrium, name, value), name)
            yield ends(f"deq_mlp, {name} = {value}", partial(by_settings, name, value), name)
        for solver in SOLVERS:
            yield ends(f"{solver}(tol={value})", partial(by_solver, solver, value), "tol")
        yield ends(f"adjoint_residual(backward_tol={value})", partial(by_residual, value), "backward_tol")


# --- names in figures -------------------------------------------------------------------------------------------------

NAMES = ("cost$_^$x", "a$b$c", r"$\frac$", "$$", "x_1", "^2", r"\alpha", "{", "%", "#1", "é$文$", "$x", "a\\$b$")


def drawn_with(name: str) -> None:
    """A data set and runs of any name are drawn, and their names stand in the figure as they are."""
    import matplotlib.pyplot as plt

    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    file = npz.own_file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    fig, axes = plt.subplots(1, 2, layout="constrained")
    try:
        found = history([[0.1, 0.5], [0.2, 0.6]], dataset=f"npz:{name}", partition="iid")
        curves({f"column/{name}": found, name: found}, ax=axes[0])
        axes[1].set_title(federation(found.settings))
        found.plot("accuracy", axes[1])
        shared_legend(fig)
        fig.canvas.draw()
        texts = [text.get_text() for text in fig.legends[0].get_texts()] + [axes[1].get_title()]
        shown = [text.replace(r"\$", "$") for text in texts]
        assert any(name in text for text in shown[:-1]), f"the legend has {shown}"
        assert name in shown[-1]
    finally:
        plt.close(fig)
        file.unlink()


# --- figures, integers, histories -------------------------------------------------------------------------------------


def replaced(folder: Path, rng: random.Random) -> None:
    """`--commit` with other values than the preset's leaves a committed figure as it is."""
    file = files.figures_dir() / ITEM.paper / f"{ITEM.stem}.json"
    content = json.dumps(recorded(ITEM, "laptop")).encode()
    files.write_atomic(file, content)
    name, value = rng.choice(
        (("dataset", "digits"), ("num_rounds", "1"), ("width", "8"), ("seeds", "7,"), ("lr", "0.123"))
    )
    said = here("run", str(ITEM), "--commit", "--preset", "laptop", "-p", name, value)
    os.environ.pop("FEDLAB_COMMIT", None)
    assert said.code == 2
    assert name in said.err or name in ("width", "lr"), said.err
    assert file.read_bytes() == content


def wraps(folder: Path, seed: int) -> None:
    """Whole numbers arrive as they are, or are refused: none wraps."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["int64", "uint64", "int32", "uint32", "float64"])
    low, high = (
        (np.finfo(kind).min / 2, np.finfo(kind).max / 2)
        if kind == "float64"
        else (np.iinfo(kind).min, np.iinfo(kind).max)
    )
    top = float(10.0 ** rng.uniform(0, np.log10(float(high))))
    x = (rng.uniform(-1 if low else 0, 1, (20, 3)) * top).astype(kind)
    file = npz.own_file("wraps")
    file.parent.mkdir(parents=True, exist_ok=True)
    y = np.arange(20) % 2
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    os.utime(file, ns=(0, int(rng.integers(1e18))))
    data = federated("wraps", partition="iid", num_clients=1)
    got, want = np.sort(np.asarray(data.x[0], float), 0), np.sort(x.astype(float), 0)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def ids(seed: int) -> None:
    rng = np.random.default_rng(seed)
    top = int(10 ** rng.uniform(1, 12))
    x = rng.integers(0, top, (20, 4))
    federated(x, x, task="next_character", owners=[0, 1] * 10)


def kept(folder: Path, kind: str) -> None:
    """`--force` keeps what this version cannot read."""
    settings = Settings(**TINY | SMALL)
    for each in files.runs_dir().glob("*"):
        each.unlink()
    run(settings)
    (file,) = files.runs_dir().glob("*.npz")
    other = file.with_suffix(f".{kind}")
    content = b"fedlab 9 something of a later version"
    other.write_bytes(content)
    run(settings, force=True)
    assert other.with_name(f"{other.name}.corrupt").read_bytes() == content
    assert store.load_history(file.stem) is not None


def without_paths(folder: Path) -> None:
    """A page of the book names no folder of this machine."""
    text = json.dumps({"a": f"{folder}/build/x.svg and {Path.home()}/data and {folder}"})
    page = json.dumps(book_pages._without_paths(json.loads(text), folder))
    assert str(folder) not in page, page
    assert f"{Path.home()}/" not in page


def merge_and_prune(folder: Path, options: tuple[str, ...]) -> None:
    """`runs merge` refuses the options of prune, and prune those of merge."""
    pack = folder / "a.zip"
    pack.write_bytes(b"")
    said = here("runs", options[0], *([str(pack)] if options[0] == "merge" else []), *options[1:])
    assert said.code == 2, "it is accepted"
    assert options[-1] in said.err, said.err


TESTS = ("tests/runs/test_stored_runs.py", "tests/papers/test_scope.py")


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    rng = random.Random(seed)
    for name in (name for name, kind in ALGORITHMS.items() if kind.has_server):
        yield ends(f"{name} with a graph", partial(settings_with_a_graph, name, rng.choice(GRAPHS)), "graph")
    yield from tolerances((*TOLERANCES, *OTHERS) if share == 1 else TOLERANCES)
    for name in NAMES if share == 1 else NAMES[:2]:
        yield holds(f"a data set and a run called {name!r}", partial(drawn_with, name), may_refuse=True)
    yield holds("commit with other values", partial(replaced, folder, rng))
    for number in range(seed, seed + math.ceil(200 * share)):
        yield holds(f"whole numbers, {number}", partial(wraps, folder, number), may_refuse=True)
        yield holds(f"ids of a text, {number}", partial(ids, number), may_refuse=True)
    for kind in ("ckpt", "state", "fit.npz") if share == 1 else ():
        yield holds(f"a later version's {kind} and --force", partial(kept, folder, kind))
    yield holds("paths in the book", partial(without_paths, folder))
    for options in (("merge", "--dry-run"), ("merge", "--yes"), ("prune", "a.zip")):
        yield holds(f"runs {' '.join(options)}", partial(merge_and_prune, folder, options))
    if share == 1:
        yield from units(*TESTS)
