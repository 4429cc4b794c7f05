"""Packs of runs: what goes into them, what comes out of them, and what is refused."""

import json
import zipfile

import numpy as np
import pytest
from test_jobs import SMALL

from fedlab_lite.algorithms import FedAvg
from fedlab_lite.cli import main
from fedlab_lite.engine import Progress
from fedlab_lite.runs import missing, pack, run_all, store
from fedlab_lite.util import CorruptFileError, InputError, OutputError, files


def runs():
    return missing({"a": SMALL}, force=True)[0]


@pytest.fixture
def packed(tmp_path):
    """A pack of two runs, whose files are no longer in the store; and their names."""
    run_all({"a": SMALL})
    names = [file.stem for file in files.runs_dir().glob("*.npz")]
    (file,), left = pack.pack(runs(), tmp_path / "runs.zip")
    assert left == []
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
    parts, left = pack.pack(runs(), tmp_path / "small.zip", limit=max(sizes) + 3000)
    assert ([part.name for part in parts], left) == (["small.zip", "small-2.zip"], [])
    assert all(part.stat().st_size <= max(sizes) + 3000 for part in parts)


def test_what_does_not_fit_is_named(packed, tmp_path):
    file, names = packed
    pack.merge(file)
    state = store.save_tree(store.path(names[0], "state"), {"state": {"0": np.zeros(9000)}})
    store.save_tree(store.path(names[1], "state"), {"state": {"0": np.zeros(9)}})
    (part,), left = pack.pack(runs(), tmp_path / "rest.zip", limit=50_000)
    assert left == [state]
    with zipfile.ZipFile(part) as archive:
        assert f"{names[1]}.state" in archive.namelist()
    assert pack.pack([], tmp_path / "none.zip") == ([], [])


def at_round(number):
    """The first run's checkpoint, in the store, at this round."""
    file = store.path(runs()[0][0], "ckpt")
    store.save_tree(file, {"state": {}, "progress": vars(Progress(next=number))})
    return file


def test_of_two_checkpoints_the_further_one_stays(tmp_path, capsys):
    own = at_round(4)
    (file,), _ = pack.pack(runs(), tmp_path / "begun.zip")
    at_round(2)
    assert pack.merge(file) == ([own.name], {})
    assert store.load_checkpoint(own)[1].next == 4
    at_round(5)
    assert main(["runs", "merge", str(file)]) == 0
    said = capsys.readouterr().out
    assert "0 files added, 1 not taken" in said
    assert f"{own.name}: the store's checkpoint is at round 5, the pack's at round 4" in said
    assert store.load_checkpoint(own)[1].next == 5
    own.unlink()
    run_all({"a": SMALL})
    assert pack.merge(file) == ([], {own.name: "its run is finished here"})
    own.write_bytes(b"no checkpoint")
    (file,), _ = pack.pack(runs(), tmp_path / "damaged.zip")
    for each in files.runs_dir().iterdir():
        each.unlink()
    with pytest.raises(CorruptFileError, match="has a checkpoint that cannot be read"):
        pack.merge(file)
    assert not list(files.runs_dir().iterdir())


def test_a_pack_of_another_version_of_the_algorithm(packed, monkeypatch):
    file, _ = packed
    monkeypatch.setattr(FedAvg, "version", 99)
    with pytest.raises(
        InputError, match=r"no settings here give the name .*\.npz and 1 more. Merge it with that version"
    ):
        pack.merge(file)
    assert not list(files.runs_dir().glob("*.npz"))


@pytest.mark.parametrize("there", ["runs.zip", "runs-2.zip", "runs-13.zip"])
def test_a_part_that_exists_is_found_before_training(tmp_path, there):
    (tmp_path / there).touch()
    (tmp_path / "runs-two.zip").touch()
    with pytest.raises(InputError, match=f"{there} exists already"):
        pack.check(tmp_path / "runs.zip")
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OutputError, match="cannot write"):
        pack.check(tmp_path / there / "runs.zip")


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
        (lambda about, _: about.update(sha256=[*about["sha256"]]), CorruptFileError, "'sha256' of its manifest is "),
        (lambda about, _: about.update(sha256={}), CorruptFileError, "its manifest names no file"),
        (lambda about, _: about.update(runs={}), InputError, "no settings here give the name"),
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
