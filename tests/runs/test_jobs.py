"""Runs within a time, by several processes: all of it, none of it, a part that goes on later; and packs of runs."""

import contextlib
import json
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from fedlab_lite.cli import main
from fedlab_lite.papers import Item, worth
from fedlab_lite.runs import Settings, jobs, missing, pack, run_all, store
from fedlab_lite.runs.jobs import Program, compute
from fedlab_lite.util import CorruptFileError, InputError, files

SMALL = Settings(
    dataset="digits", partition="iid", num_clients=4, train_size=80, test_size=40, num_rounds=2, seeds=(0, 1),
    model_options={"width": 8},
)  # fmt: skip
RUNS = {"a": SMALL, "b": replace(SMALL, model_options={"width": 9})}


def programs(runs):
    return [Program(runs) for runs in missing(runs)]


@pytest.mark.slow
def test_two_processes_compute_what_one_does():
    outcome = compute(programs(RUNS), jobs=2, minutes=5)
    assert (len(outcome.finished), outcome.begun, outcome.left, outcome.problems) == (4, [], 0, [])
    there = run_all(RUNS)
    again = run_all(RUNS, force=True)
    for name, history in there.items():
        np.testing.assert_array_equal(history.metrics["loss"], again[name].metrics["loss"])
    with pytest.raises(InputError, match="nothing is missing"):
        compute(programs(RUNS), jobs=2)


@pytest.mark.slow
def test_a_time_that_is_too_short_keeps_its_deadline_and_loses_nothing():
    began = time.time()
    with pytest.raises(InputError, match=r"0.01 minutes were over before the first program had made a round"):
        compute(programs(RUNS), jobs=1, minutes=0.01)
    assert time.time() - began < 0.6 + jobs.GRACE + 5
    assert len(missing(RUNS)) == 2


@pytest.mark.slow
def test_a_run_goes_on_after_the_time():
    """A thousand rounds do not end in 20 seconds; the checkpoint is there, is packed, and continues elsewhere."""
    long = {"long": replace(SMALL, num_rounds=100_000, eval_every=100_000, seeds=(0,))}
    outcome = compute(programs(long), jobs=1, minutes=1 / 3)
    assert (outcome.finished, len(outcome.begun), outcome.left) == ([], 1, 1)
    checkpoint = store.load_tree(store.path(outcome.begun[0], "ckpt"))
    assert 0 < checkpoint["progress"]["next"] < 100_000
    (packed,) = pack.pack(outcome.begun, files.runs_dir().parent / "begun.zip")
    store.path(outcome.begun[0], "ckpt").unlink()
    assert pack.merge(packed) == ([f"{outcome.begun[0]}.ckpt"], [])
    assert store.load_tree(store.path(outcome.begun[0], "ckpt"))["progress"]["next"] == checkpoint["progress"]["next"]


@pytest.fixture
def packed(tmp_path):
    """A pack of two runs, whose files are no longer in the store; and their names."""
    run_all({"a": SMALL})
    names = [file.stem for file in files.runs_dir().glob("*.npz")]
    (file,) = pack.pack(names, tmp_path / "runs.zip")
    for each in files.runs_dir().glob("*.npz"):
        each.unlink()
    return file, names


def test_a_pack_that_would_unpack_to_gigabytes(tmp_path):
    file, name = tmp_path / "bomb.zip", f"{'0' * 32}-{'0' * 16}.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", "{}")
        archive.writestr(name, bytes(3 * pack.LIMIT))
    assert file.stat().st_size < 1e5
    with pytest.raises(CorruptFileError, match="it would unpack to 50,331,650 bytes"):
        pack.merge(file)


def test_a_pack_is_merged_once(packed):
    file, names = packed
    assert len(missing({"a": SMALL})[0]) == 2
    added, known = pack.merge(file)
    assert sorted(added) == sorted(f"{name}.npz" for name in names)
    assert not known
    assert not missing({"a": SMALL})
    assert pack.merge(file)[0] == []


def test_packs_of_limited_size(packed, tmp_path):
    file, names = packed
    pack.merge(file)
    sizes = [store.path(name, "npz").stat().st_size for name in names]
    parts = pack.pack(names, tmp_path / "small.zip", limit=max(sizes) + 3000)
    assert [part.name for part in parts] == ["small.zip", "small-2.zip"]
    assert all(part.stat().st_size <= max(sizes) + 3000 for part in parts)


def edited(file, change):
    """The pack with another manifest."""
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(contents["manifest.json"])
    change(about, contents)
    contents["manifest.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def flip(about, contents):
    name = next(name for name in contents if name.endswith("npz"))
    contents[name] = contents[name][:-9] + b"otherbyte"


def outside(about, contents):
    contents["../evil.npz"] = b"x"
    about["sha256"]["../evil.npz"] = "0" * 64


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (flip, CorruptFileError, "is not what was packed; copy the pack again"),
        (outside, CorruptFileError, r"'../evil.npz' is not what was packed"),
        (lambda about, _: about.update(engine=1), InputError, "Merge it with that version"),
        (lambda about, _: about.update(form=9), InputError, r"\(form 9, engine 2\)"),
        (lambda about, _: about.pop("sha256"), CorruptFileError, "is damaged or no pack"),
    ],
)
def test_packs_that_cannot_be_merged(packed, change, error, words):
    file, _ = packed
    edited(file, change)
    with pytest.raises(error, match=words):
        pack.merge(file)
    assert not list(files.runs_dir().glob("*.npz"))


def test_a_cut_pack_and_none(packed, tmp_path):
    file, _ = packed
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(CorruptFileError, match="is damaged or no pack"):
        pack.merge(file)
    with pytest.raises(InputError, match="does not exist; give the path of a pack"):
        pack.merge(tmp_path / "none.zip")
    with pytest.raises(InputError, match=r"a pack is a file <name>.zip"):
        pack.check(tmp_path / "runs.tar")
    with pytest.raises(InputError, match="exists already"):
        pack.check(file)


@pytest.mark.slow
def test_undecided_claims_first_then_by_time(monkeypatch):
    items = [Item("fedeq", f"{stem}") for stem in ("tab03_accuracy", "fig04_mlp_vs_deq_mlp", "fig07_loss_curves")]
    outcomes = dict(zip(items, ("undecided", "agrees", "undecided"), strict=True))
    monkeypatch.setattr(worth.results, "committed", lambda: {item: {"outcome": outcomes[item]} for item in items})
    of = {item: {"r": replace(SMALL, data_seed=number)} for number, item in enumerate(items)}
    monkeypatch.setattr(worth.presets, "settings", lambda paper, stem, preset: of[Item(paper, stem)])
    found = worth.programs(items, "laptop", {})
    assert [program.runs[0][1].data_seed for program in found] == [2, 0, 1]  # 15, 220 and 11 minutes at laptop
    assert [program.keep_state for program in found] == [True, False, False]
    with pytest.raises(InputError, match="unknown algorithm of these runs 'ditto'"):
        worth.programs(items, "laptop", {}, only="ditto")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--minutes", "0"], "'0' is not a number above 0"),
        (["--minutes", "soon"], "'soon' is not a number above 0"),
        (["--jobs", "0"], "'0' is not a whole number of at least 1"),
        (["--only", "fedavgg"], "did you mean 'fedavg'"),
        (["--pack", "runs.tar"], "a pack is a file <name>.zip"),
    ],
)
def test_bad_arguments(arguments, words, capsys):
    with contextlib.suppress(SystemExit):  # of argparse
        assert main(["compute", "fedeq/fig04", *arguments]) == 2
    assert words in capsys.readouterr().err
