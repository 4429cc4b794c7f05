"""Section D: files of other versions, or altered behind good checksums: one clear error, or the same content."""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
from helpers import history, recorded

import fedlab_lite as fl
from attacks.cases import Outcome, here, holds, units
from attacks.strange import changed, other_array
from fedlab_lite.algorithms import FedPer
from fedlab_lite.data import federated
from fedlab_lite.engine import saved
from fedlab_lite.papers import Item, first_cells, notebooks, report, results
from fedlab_lite.runs import contents, store
from fedlab_lite.util import files

ITEM = Item("fedeq", "fig04_mlp_vs_deq_mlp")
# --- behind good checksums --------------------------------------------------------------------------------------------


def a_run(rng: random.Random) -> None:
    """A history of another form: one error, or a history that can be shown and plotted."""
    one = replace(history([[0.1, 0.5]], seeds=(0,)), diverged=(False,))
    arrays = {"metric accuracy": one.metrics["accuracy"], "rounds": one.rounds, "client_curves": one.client_curves[:1]}
    meta = json.loads(json.dumps({field: getattr(one, field) for field in contents.META}))
    if rng.random() < 0.5:
        meta = changed(meta, rng)
    else:
        name = rng.choice([*arrays])
        if rng.random() < 0.3:
            del arrays[name]
        else:
            arrays[name] = other_array(arrays[name], rng)
    if not isinstance(meta, dict):
        return
    store.save_arrays(store.path("run", "npz"), arrays, meta)
    found = store.load_history("run")
    assert found is not None
    found._repr_html_()
    repr(found)
    fl.History.stack([found])
    assert found.final().shape == (len(found.seeds),)


def a_checkpoint(rng: random.Random) -> None:
    tree = {"state": {"0": np.ones(3)}, "progress": {"next": 1}, "made": {"device": "cpu", "precision": "float32"}}
    tree = changed(tree, rng)
    if not isinstance(tree, dict):
        return
    try:
        file = store.save_tree(store.path("run", "ckpt"), tree)
    except OverflowError:  # msgpack has no such number
        return
    state, progress, _ = store.load_checkpoint(file)
    store.unpack(file, state, {"a": np.ones(3)})
    assert isinstance(progress.next, int)


def a_result(rng: random.Random) -> None:
    """A result of another form, through `report` and all pages."""
    said = {"reading": {"outcome": "agrees", "reason": "so"}}
    plain = recorded(ITEM, "laptop", readings=said, also=said, departures=["one"], runs=["a"], changed={"lr": 0.1})
    file = files.figures_dir() / ITEM.paper / f"{ITEM.stem}.json"
    files.write_atomic(file, json.dumps(changed(plain, rng)).encode())
    try:
        found = results.committed()
        report.page("fedeq", found)
        for item, each in found.items():
            first_cells.committed(item, each)
        answers = [here("report", "--full"), here("run", "--committed", "--stored", "-p", "nothing", "1")]
        answers.append(here("runs", "prune", "--dry-run"))
    finally:
        file.unlink()
    assert all(each.code in (0, 2) for each in answers)


def a_notebook(folder: Path, rng: random.Random) -> None:
    """A notebook of another form, through all that reads notebooks."""
    cells = [
        nbformat.v4.new_markdown_cell("# a"),
        nbformat.v4.new_code_cell("a: int = 1", metadata={"tags": ["parameters"]}),
    ]
    metadata = {"papermill": {"exception": False, "parameters": {"preset": "quick"}, "input_path": "x"}}
    plain = json.loads(nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=metadata)))
    file = files.write_atomic(folder / "fedeq" / "a.ipynb", json.dumps(changed(plain, rng)).encode())
    notebooks.parameters(file)
    notebooks.check_parameters(file, {"a": 2})


def a_model(folder: Path) -> tuple[Path, dict, dict]:
    """A saved model: its folder, what it says of itself, and its arrays."""
    x, y = np.eye(2, dtype=np.float32).repeat(20, 0), np.arange(2).repeat(20)
    data = federated(x, y, owners=["Ada", "Bob"] * 20, label_words=("no", "yes"))
    problem = fl.Problem(data, fl.make_model("mlp", data.input_shape, data.num_classes, width=8))
    _, state = fl.train(problem, FedPer(lr=0.1), num_rounds=1)
    where = fl.save(folder / "model", problem, FedPer(lr=0.1), state)
    with np.load(where / saved.PARAMS) as archive:
        arrays = dict(archive)
    return where, json.loads((where / saved.ABOUT).read_text()), arrays


def altered_models(folder: Path, rng: random.Random, number: int) -> Iterator[Outcome]:
    """A saved model whose description has another form, with its checksum: one error, or the same answers."""
    where, about, arrays = a_model(folder)
    x = np.eye(2, dtype=np.float32)
    want = fl.load(where).predict(x, client="Bob").tolist()
    del about["checksum"]
    for k in range(number):
        other = changed(about, rng)
        if isinstance(other, dict):
            other |= {"checksum": saved._checksum({**other}, arrays)}
        (where / saved.ABOUT).write_text(json.dumps(other))

        def attempt(other: dict = other) -> None:
            got = fl.load(where).predict(x, client="Bob").tolist()
            assert got == want or other["labels"] != about["labels"] or other["clients"] != about["clients"], got

        yield holds(f"a saved model, {k}", attempt, may_refuse=True)


TESTS = ("tests/runs/test_store.py", "tests/papers/test_results.py", "tests/papers/test_pruning.py")


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    rng = random.Random(seed)
    draws: dict[str, tuple[int, Callable[[], None]]] = {
        "a run": (600, lambda: a_run(rng)),
        "a checkpoint": (300, lambda: a_checkpoint(rng)),
        "a result": (150, lambda: a_result(rng)),
        "a notebook": (300, lambda: a_notebook(folder, rng)),
    }
    for what, (number, attempt) in draws.items():
        for k in range(math.ceil(number * share)):
            yield holds(f"{what} of another form, {k}", attempt, may_refuse=True)
    if share == 1:
        yield from altered_models(folder, rng, 200)
        yield from units(*TESTS)
