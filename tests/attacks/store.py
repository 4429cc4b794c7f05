"""Section D: the store and other files: altered behind good checksums, crafted, of other versions, several writers."""

import copy
import json
import math
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from helpers import history, recorded

import fedlab_lite as fl
from attacks.cases import ROOT, SILENT, TRACEBACK, Outcome, ends, here, holds, tests
from fedlab_lite.algorithms import FedPer
from fedlab_lite.data import federated
from fedlab_lite.engine import saved
from fedlab_lite.papers import Item, notebooks, presets, report, results
from fedlab_lite.runs import contents, pack, store
from fedlab_lite.util import CorruptFileError, FedlabError, files

ITEM = Item("fedeq", "fig04_mlp_vs_deq_mlp")
STRANGE = (
    None,
    True,
    -1,
    0,
    3.5,
    float("nan"),
    float("inf"),
    10**30,
    "",
    "x",
    "../../x",
    [],
    [1],
    {},
    {"a": 1},
    "1" * 99,
)


def changed(value: Any, rng: random.Random) -> Any:
    """A copy of nested dictionaries and lists with one part removed, added or of another kind."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def walk(each: Any) -> None:
        inside = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, part in list(inside):
            places.append((each, key))
            walk(part)

    walk(value)
    if not places:
        return rng.choice(STRANGE)
    where, key = rng.choice(places)
    kind = rng.choice(("remove", "other", "other", "other", "add"))
    if kind == "remove":
        del where[key]
    elif kind == "other":
        where[key] = rng.choice(STRANGE)
    elif isinstance(where, dict):
        where["invented"] = rng.choice(STRANGE)
    else:
        where.append(rng.choice(STRANGE))
    return value


def other_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    kinds: tuple[Callable, ...] = (
        lambda: array[:0], lambda: array.astype(str), lambda: array[None], lambda: array * np.nan, lambda: array.astype(complex),
        lambda: np.array(3), lambda: array.astype(">f8"), lambda: array[..., None],
    )  # fmt: skip
    return rng.choice(kinds)()


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
    state, progress, made = store.load_checkpoint(file)
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
            report.first_cell(item, each)
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

        def attempt() -> None:
            got = fl.load(where).predict(x, client="Bob").tolist()
            assert got == want or other["labels"] != about["labels"] or other["clients"] != about["clients"], got

        yield holds(f"a saved model, {k}", attempt, may_refuse=True)


# --- packs ------------------------------------------------------------------------------------------------------------


def packs(folder: Path, rng: random.Random) -> None:
    """A crafted pack writes nothing but files of runs into the store."""
    name = f"{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}"
    content = store._packed({"a": np.ones(2)}, {"b": 1})
    names = (
        f"{name}.npz",
        f"../{name}.npz",
        "/tmp/x.npz",
        f"{name}.state",
        f"{name}.sh",
        f"{name}.npz/../../x.npz",
        "a" * 300,
    )
    inside = {rng.choice(names): rng.choice((content, b"", b"x"))}
    import hashlib

    digests: Any = {each: hashlib.sha256(data).hexdigest() for each, data in inside.items()}
    about = {"form": 1, "engine": fl.engine.training.ENGINE, "package": "0", "sha256": digests}
    file = folder / "p.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", json.dumps(changed(about, rng) if rng.random() < 0.6 else about))
        for each, data in inside.items():
            archive.writestr(each, data)
    before = {*folder.rglob("*")}
    try:
        pack.merge(file)
    finally:
        for each in {*folder.rglob("*")} - before - {files.runs_dir()}:
            assert each.parent == files.runs_dir(), each
            assert pack._NAME.fullmatch(each.name), each


def a_bomb(folder: Path) -> None:
    """A small pack that unpacks to gigabytes."""
    import resource

    file, name = folder / "bomb.zip", f"{'0' * 32}-{'0' * 16}.npz"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        about = {"form": 1, "engine": fl.engine.training.ENGINE, "package": "0", "sha256": {name: "0"}}
        archive.writestr("manifest.json", json.dumps(about))
        with archive.open(name, "w", force_zip64=True) as inside:
            for _ in range(3000):
                inside.write(bytes(1 << 20))
    try:
        pack.merge(file)
    finally:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 1_000_000, f"{grown / 1e6:.1f} GB were taken"


# --- several writers --------------------------------------------------------------------------------------------------

COMMITS = """
import sys
sys.path.insert(0, "tests")
import matplotlib.pyplot as plt
from helpers import history
from fedlab_lite.papers import presets, results
from fedlab_lite.papers.outcome import Verdict
from fedlab_lite.runs import run_names, store
items = presets.items("fedeq/*")
one = {"mean": 1.0, "std": 0.0, "n": 1}
for number in range(int(sys.argv[2])):
    item = items[(2 * number + int(sys.argv[1])) % len(items)]
    run = history([[0.1, 0.5], [0.1, 0.6]], graph_seed=10 * number + int(sys.argv[1]))
    for seed, name in enumerate(run_names(run)):
        store.save_history(name, run)
    options = {"preset": "quick", "metrics": {"mlp": one}, "histories": {"mlp": run}}
    results.save_figure(plt.figure(), *item, verdict=Verdict("agrees", "so"), **options)
    plt.close("all")
"""


def two_commits(folder: Path, saves: int) -> Outcome:
    """Two notebooks of one paper that are committed at once, again and again: no figure names a run that is gone."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FEDLAB_COMMIT": "1"}
    command = [sys.executable, "-c", COMMITS]
    pair = [
        subprocess.Popen(
            [*command, str(k), str(saves)],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    said = [process.communicate(timeout=300) for process in pair]
    if any(process.returncode for process in pair):
        return Outcome("two commits at once", said[0][1][-300:] or said[1][1][-300:], TRACEBACK, saves)
    home = files.figures_dir() / "fedeq"
    named = {name for result in results.committed().values() for name in result["runs"]}
    there = {file.name.partition(".")[0] for file in (home / "runs").glob("*.npz")}
    return Outcome(
        "two commits at once",
        f"{len(named ^ there)} runs are named and gone, or left" if named != there else "",
        SILENT,
        saves,
    )


def in_a_link(folder: Path) -> None:
    """What is written through links arrives where they lead; loops and links to nowhere are one error."""
    (folder / "real").mkdir()
    for name, to in (("runs", folder / "real"), ("loop", folder / "loop"), ("nowhere", folder / "no" / "such")):
        (folder / name).symlink_to(to)
    os.environ["FEDLAB_RUNS"] = str(folder / "runs")
    store.save_tree(store.path("a", "ckpt"), {"state": {}})
    assert (folder / "real" / "a.ckpt").exists()
    assert (folder / "runs").is_symlink()
    for name in ("loop", "nowhere"):
        os.environ["FEDLAB_RUNS"] = str(folder / name / "x")
        try:
            store.save_tree(store.path("a", "ckpt"), {"state": {}})
        except FedlabError:
            continue
        assert (folder / "no" / "such").exists(), f"written somewhere through {name}"


TESTS = (
    "tests/runs/test_store.py",
    "tests/papers/test_results.py",
    "tests/papers/test_pruning.py",
    "tests/runs/test_interruptions.py",
)


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    rng = random.Random(seed)
    draws: dict[str, tuple[int, Callable[[], None]]] = {
        "a run": (600, lambda: a_run(rng)),
        "a checkpoint": (300, lambda: a_checkpoint(rng)),
        "a result": (150, lambda: a_result(rng)),
        "a notebook": (300, lambda: a_notebook(folder, rng)),
        "a pack": (300, lambda: packs(folder, rng)),
    }
    for what, (number, attempt) in draws.items():
        for k in range(math.ceil(number * share)):
            yield holds(f"{what} of another form, {k}", attempt, may_refuse=True)
    yield from altered_models(folder, rng, math.ceil(200 * share))
    yield holds(
        "links",
        lambda: in_a_link(
            folder / "figures_of_links" if (folder / "figures_of_links").mkdir() else folder / "figures_of_links"
        ),
    )
    if share == 1:
        yield holds("a pack that unpacks to gigabytes", lambda: a_bomb(folder), may_refuse=True)
        yield two_commits(folder, 20)
        yield from tests(*TESTS, words="not thirty and not processes")
