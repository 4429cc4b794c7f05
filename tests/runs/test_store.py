"""Files of the run store: what goes in comes out, damage is noticed, sizes are bounded."""

import contextlib
import hashlib
import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import history
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlab_lite.runs import contents, runner, store
from fedlab_lite.util import CorruptFileError, InputError, OutputError, files

ARRAYS = st.dictionaries(
    st.text("abc ", min_size=1, max_size=4).filter(lambda name: name.strip() == name),
    hnp.arrays(st.sampled_from([np.float32, np.int32]), hnp.array_shapes(max_dims=3, max_side=4)),
    max_size=3,
)


@given(arrays=ARRAYS, note=st.text(max_size=8))
def test_runs_come_back(tmp_path_factory, arrays, note):
    file = tmp_path_factory.mktemp("run") / "a.npz"
    store.save_arrays(file, arrays, {"note": note, "number": 0.1})
    found, meta = store.load_arrays(file)
    assert meta == {"note": note, "number": 0.1}
    assert found.keys() == arrays.keys()
    assert all(found[n].dtype == a.dtype and found[n].tobytes() == a.tobytes() for n, a in arrays.items())


def test_trees_come_back_with_keys_and_structure(tmp_path):
    tree = {"b": jnp.arange(3), "a": (jnp.float32(0.5), jax.random.key(7)), "big": jnp.ones((2, 2), jnp.bfloat16)}
    file = store.save_tree(tmp_path / "a.state", {"state": store.pack(tree), "next": 3})
    saved = store.load_tree(file)
    assert saved["next"] == 3
    like = jax.eval_shape(lambda: tree)
    back = store.unpack(file, saved["state"], like)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    assert back["big"].dtype == jnp.bfloat16
    assert back["b"].tolist() == [0, 1, 2]
    assert jax.random.uniform(back["a"][1]) == jax.random.uniform(jax.random.key(7))


def test_missing_files_are_none(tmp_path):
    assert store.load_arrays(tmp_path / "no.npz") is None
    assert store.load_tree(tmp_path / "no.ckpt") is None


@given(position=st.floats(0, 1), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(tmp_path_factory, position, bit):
    """Either an error, or (in a zip's padding) the very same content."""
    folder = tmp_path_factory.mktemp("flip")
    arrays = {"x": np.arange(40, dtype=np.float32)}
    run_file = store.save_arrays(folder / "a.npz", arrays, {"note": "n"})
    tree_file = store.save_tree(folder / "a.ckpt", arrays)
    for file, load in ((run_file, store.load_arrays), (tree_file, store.load_tree)):
        content = bytearray(file.read_bytes())
        content[int(position * (len(content) - 1))] ^= 1 << bit
        file.write_bytes(content)
        try:
            found = load(file)
        except CorruptFileError:
            continue
        assert file is run_file
        assert found[1] == {"note": "n"}
        np.testing.assert_array_equal(found[0]["x"], arrays["x"])


def test_pickles_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(CorruptFileError):
        store.load_arrays(tmp_path / "a.npz")


def test_paper_sized_runs_fit(tmp_path):
    noise = np.random.default_rng(0).normal(size=(5, 401)).astype(np.float32)
    file = store.save_arrays(tmp_path / "a.npz", {f"metric {i}": noise for i in range(8)}, {})
    assert file.stat().st_size < 100_000


def test_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    file = store.save_arrays(tmp_path / "a.npz", {"x": np.zeros(3)}, {})
    before = file.read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        store.save_arrays(file, {"x": np.ones(3)}, {})
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["a.npz"]


def test_leftovers_of_killed_writers_are_swept_when_old(folders):
    runs = files.runs_dir()
    runs.mkdir()
    old, new, other = runs / ".a.ckpt.x.tmp", runs / ".b.ckpt.y.tmp", runs / "a.npz"
    for file in (old, new, other):
        file.write_bytes(b"")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    files.sweep(runs)
    assert sorted(file.name for file in runs.iterdir()) == [".b.ckpt.y.tmp", "a.npz"]


TINY = runner.Settings(dataset="textures", partition="iid", num_clients=2, num_rounds=1, train_size=20, test_size=10)


@contextlib.contextmanager
def read_only_disk():
    """Root may write anywhere, so the refusal is simulated where the system would make it."""

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    calls = ((os, "fsync"), (files.tempfile, "NamedTemporaryFile"), (os, "unlink"), (os, "replace"))
    with pytest.MonkeyPatch.context() as patch:
        for where, name in calls:
            patch.setattr(where, name, refuse)
        yield


def malformed():
    """Contents behind a good checksum, of runs and of checkpoints, that this version cannot use."""
    one = vars(history([[0.1, 0.5]], seeds=(0,)))
    meta = {field: one[field] for field in contents.META}
    arrays = {"metric accuracy": one["metrics"]["accuracy"]} | {name: one[name] for name in ("rounds", "client_curves")}
    yield "npz", arrays, meta | {"invented": 1}
    yield "npz", arrays, {name: value for name, value in meta.items() if name != "seeds"}
    yield "npz", arrays, meta | {"diverged": 3}
    whole = meta | {"diverged": (False,)}
    yield "npz", arrays, whole | {"about": {"model": 3}}
    yield "npz", arrays | {"rounds": np.zeros(3, int)}, whole
    yield "npz", arrays | {"client_curves": np.array("x")}, whole
    yield "npz", {"rounds": one["rounds"]}, meta
    yield "npz", {}, {}
    whole = {"state": {"0": np.ones(3)}, "progress": {"next": 1}}
    for tree in ({}, whole | {"progress": {"later": 1}}, whole | {"state": 3}, {"state": {}}):
        yield "ckpt", tree, None


@pytest.mark.parametrize(("kind", "content", "meta"), [*malformed()])
def test_what_another_version_wrote_is_one_error_and_is_kept(kind, content, meta):
    file = store.path("run", kind)
    if kind == "npz":
        store.save_arrays(file, content, meta)
    else:
        store.save_tree(file, content)
    whole = file.read_bytes()
    with pytest.raises(CorruptFileError, match=r"another version.*run\.(npz|ckpt)\.corrupt"):
        store.load_history("run") if kind == "npz" else store.load_checkpoint(file)
    store.set_aside("run")
    assert [each.name for each in files.runs_dir().iterdir()] == [f"run.{kind}.corrupt"]
    assert file.with_name(f"{file.name}.corrupt").read_bytes() == whole


def test_a_checkpoint_that_is_no_msgpack(folders):
    file, payload = store.path("run", "ckpt"), b"\xc1 no msgpack"
    files.write_atomic(file, store._HEADER + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    with pytest.raises(CorruptFileError, match="is corrupt"):
        store.load_checkpoint(file)
    store.set_aside("run")
    assert not file.exists()


def test_a_run_of_another_user(monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    store.save_tree(store.path("run", "ckpt"), {})
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CorruptFileError, match=r"cannot be read: Permission denied.*FEDLAB_RUNS"):
        store.load_checkpoint(store.path("run", "ckpt"))


def test_a_read_only_store_can_be_read(folders):
    settings = replace(TINY, model_options={"width": 4})
    first = runner.run(settings)
    (file,) = files.runs_dir().iterdir()
    file.with_suffix(".ckpt").write_bytes(b"")  # as of a kill between the last write and the removal
    with read_only_disk():
        assert runner.run(settings).metrics["accuracy"].tolist() == first.metrics["accuracy"].tolist()
        with pytest.raises(OutputError, match=r"cannot write .*: Read-only file system"):
            runner.run(settings, force=True)
    assert file.exists()


def test_what_cannot_be_stored_is_not_trained(folders, monkeypatch):
    monkeypatch.setattr(runner, "train_batch", lambda *args, **options: pytest.fail("it was trained"))
    with read_only_disk(), pytest.raises(OutputError, match="Read-only"):
        runner.run(TINY)
    files.runs_dir().rmdir()
    files.runs_dir().write_text("")
    with pytest.raises(OutputError, match="runs is a file, not a folder"):
        runner.run(TINY)


def test_a_directory_in_a_runs_place(folders):
    file = store.path("a", "npz")
    (file / "something").mkdir(parents=True)
    with pytest.raises(CorruptFileError, match=r"a\.npz is corrupt \(Is a directory\)"):
        store.load_history("a")
    store.set_aside("a")
    assert (file.with_name("a.npz.corrupt") / "something").is_dir()
    (file / "else").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"cannot write .*a\.npz"):  # there is one set aside already
        store.set_aside("a")
    store.path("b", "ckpt").mkdir()
    with pytest.raises(CorruptFileError, match=r"b\.ckpt is corrupt \(Is a directory\)"):
        store.load_tree(store.path("b", "ckpt"))


def test_nothing_is_written_outside_the_store():
    for kind in ("../../x.npz", "/tmp/x.npz", "a\\b"):
        with pytest.raises(InputError, match="part of a file's name"):
            store.path("a", kind)


def test_a_history_of_many_clients_and_rounds_is_stored(folders):
    rng = np.random.default_rng(0)
    long = history(rng.random((1, 2501)), seeds=(0,))
    long = replace(long, diverged=(False,), client_curves=rng.random((1, 2501, 1000), np.float32), settings=None)
    store.save_history("long", long)
    assert store.path("long", "npz").stat().st_size < store.MAX_BYTES
    back = store.load_history("long")
    np.testing.assert_array_equal(back.client_accuracy, long.client_accuracy)
    np.testing.assert_allclose(back.client_curves, long.client_curves, atol=5e-4)


def crafted(header: bytes) -> bytes:
    """An archive whose one array has this header, and nothing behind it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return buffer.getvalue()


CRAFTED = {
    "huge": b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }",
    "negative": b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
    "wider": b"{'descr': '<f8', 'fortran_order': False, 'shape': (10**30,), }",
    "nested": b"(" * 5000,
    "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "code": b"__import__('os').mkdir('owned')",
    "no text": b"\xff\x00",
}


@pytest.mark.parametrize("header", CRAFTED)
def test_a_crafted_archive_is_corrupt(tmp_path, header):
    file = tmp_path / "a.npz"
    file.write_bytes(crafted(CRAFTED[header]))
    with pytest.raises(CorruptFileError, match=r"a\.npz is corrupt"):
        store.load_arrays(file)
    assert list(tmp_path.iterdir()) == [file]


def test_every_committed_history_and_measure_is_whole():
    """Written by earlier versions, too: a checksum means the same for good."""
    found = sorted(files.project_root().glob("figures/*/runs/*.npz"))
    assert found
    for file in found:
        arrays, _ = store.load_arrays(file)
        assert arrays, file


def test_a_checksum_means_the_same_for_good():
    arrays = {"a": np.float32(3.5), "b": np.arange(6).reshape(2, 3).T, "c": np.zeros((0, 2)), "d": np.array(7)}
    assert files.sha256_of_arrays(arrays).startswith("338d4c342258467757fece22b1ba96d3")
