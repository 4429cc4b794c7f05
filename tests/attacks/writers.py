"""Section D, second part: crafted packs, several writers, links."""

import hashlib
import json
import math
import os
import random
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from attacks.cases import ROOT, SILENT, TRACEBACK, Outcome, holds
from attacks.strange import changed
from fedlab_lite.engine import training
from fedlab_lite.papers import results
from fedlab_lite.runs import Settings, pack, store
from fedlab_lite.runs.names import name_here
from fedlab_lite.util import FedlabError, files


def packs(folder: Path, rng: random.Random) -> None:
    """A crafted pack writes nothing but files of runs into the store."""
    name = f"{name_here(Settings().canonical(), 0)}-{rng.getrandbits(64):016x}"
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
    digests: Any = {each: hashlib.sha256(data).hexdigest() for each, data in inside.items()}
    runs = {each[:49]: {"settings": Settings().canonical(), "seed": 0} for each in inside}
    about = {"form": pack.FORM, "engine": training.ENGINE, "package": "0", "sha256": digests, "runs": runs}
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
    file, name = folder / "bomb.zip", f"{'0' * 32}-{'0' * 16}.npz"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        about = {"form": pack.FORM, "engine": training.ENGINE, "package": "0", "sha256": {name: "0"}, "runs": {}}
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
    for name, to in (("link", folder / "real"), ("loop", folder / "loop"), ("nowhere", folder / "no" / "such")):
        (folder / name).symlink_to(to)
    for name in ("link", "loop/x", "nowhere/x"):
        with mock.patch.dict(os.environ, {"FEDLAB_RUNS": str(folder / name)}):
            try:
                store.save_tree(store.path("a", "ckpt"), {"state": {}})
                written = True
            except FedlabError:
                written = False
        assert not written or (folder / name / "a.ckpt").resolve().exists(), f"written somewhere through {name}"
    assert (folder / "real" / "a.ckpt").exists()
    assert (folder / "link").is_symlink()


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    rng = random.Random(seed)
    for k in range(math.ceil(300 * share)):
        yield holds(f"a pack of another form, {k}", partial(packs, folder, rng), may_refuse=True)
    yield holds("links", partial(in_a_link, folder))
    if share == 1:
        yield holds("a pack that unpacks to gigabytes", partial(a_bomb, folder), may_refuse=True)
        yield two_commits(folder, 20)
