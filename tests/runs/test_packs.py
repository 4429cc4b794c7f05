"""Packs of runs: what goes into them, what comes out of them, and what is refused."""

import json
import zipfile

import pytest
from test_jobs import SMALL

from fedlab_lite.runs import missing, pack, run_all, store
from fedlab_lite.util import CorruptFileError, InputError, files


@pytest.fixture
def packed(tmp_path):
    """A pack of two runs, whose files are no longer in the store; and their names."""
    run_all({"a": SMALL})
    names = [file.stem for file in files.runs_dir().glob("*.npz")]
    (file,), left = pack.pack(missing({"a": SMALL}, force=True)[0], tmp_path / "runs.zip")
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
    parts, left = pack.pack(missing({"a": SMALL}, force=True)[0], tmp_path / "small.zip", limit=max(sizes) + 3000)
    assert ([part.name for part in parts], left) == (["small.zip", "small-2.zip"], [])
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
