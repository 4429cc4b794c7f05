"""Files of the run store: what goes in comes out, damage is noticed, sizes are bounded."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlab_lite import files, store
from fedlab_lite.errors import CorruptFileError, OutputError

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
    store.sweep()
    assert sorted(file.name for file in runs.iterdir()) == [".b.ckpt.y.tmp", "a.npz"]
