"""Embedded data: shapes, Table I's sizes, determinism, the cache, and that they can be learnt but not trivially."""

import numpy as np
import pytest

from fedlab_lite.data import synthetic
from fedlab_lite.util import InputError, sha256_of_arrays


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path))
    return tmp_path / "embedded"


@pytest.fixture(scope="module")
def outlines():
    return synthetic._outlines()


@pytest.fixture
def quick_outlines(outlines, monkeypatch):
    monkeypatch.setattr(synthetic, "_outlines", lambda: outlines)


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_outlines_are_centred_distinct_and_clear_of_the_border(outlines):
    assert outlines.shape == (21, 62, 48, 48)
    assert outlines.min() >= 0
    assert outlines.max() <= 1
    assert outlines[:, :, [0, -1]].max() == outlines[..., [0, -1]].max() == 0
    assert outlines.sum((2, 3)).min() > 20  # every character has ink
    columns = (outlines.sum(2) * np.arange(48)).sum(-1) / outlines.sum((2, 3))
    assert abs(columns - 23.5).max() < 6
    distinct = [len(np.unique(face.reshape(62, -1), axis=0)) for face in outlines]
    assert min(distinct) >= 61  # some typefaces draw I and l alike
    assert sum(distinct) >= 21 * 62 - 5


@pytest.mark.usefixtures("quick_outlines")
def test_the_drawn_rows_are_those_of_the_committed_runs():
    """Matplotlib draws the characters: a release that draws others would give the runs of old names other rows."""
    rows = {"digits": synthetic._digits(40, 10, 0)["x_train"], "glyphs": synthetic._glyphs(2, 0)["x_train"]}
    found = {name: sha256_of_arrays({"x": x})[:12] for name, x in rows.items()}
    assert found == {"digits": "bdb4088e8ad3", "glyphs": "69dd5f65c0a7"}


def test_an_altered_file_is_made_anew(cache):
    first = synthetic.textures(10, 20, 10)
    (file,) = cache.iterdir()
    with np.load(file) as archive:
        arrays = dict(archive)
    np.savez(file, **arrays | {"y_train": np.zeros_like(arrays["y_train"])})
    assert same(synthetic.textures(10, 20, 10), first)
    np.savez(file, **arrays)
    assert same(synthetic.textures(10, 20, 10), first)


def test_more_rows_than_memory():
    for make in (synthetic.digits, lambda *sizes: synthetic.textures(10, *sizes)):
        with pytest.raises(InputError, match=r"embedded (digits|textures) would take .* use fewer rows or clients"):
            make(10**10, 10)


@pytest.mark.usefixtures("quick_outlines")
def test_glyphs_have_the_sizes_of_table_1():
    pool = synthetic.glyphs(40)
    assert pool.x_train.shape[1:] == (28, 28, 1)
    assert pool.x_train.dtype == np.uint8
    assert pool.num_classes == 62
    assert len(pool.x_train) == len(pool.y_train) == len(pool.owner_train)
    train, test = np.bincount(pool.owner_train), np.bincount(pool.owner_test)
    assert len(train) == len(test) == 40
    assert train.mean() == pytest.approx(194, abs=2)
    assert train.std() == pytest.approx(73, abs=2)
    assert test.sum() / (test.sum() + train.sum()) == pytest.approx(0.1036, abs=0.003)
    assert test.min() >= 1
    assert pool.y_train.min() == 0
    assert pool.y_train.max() == 61


@pytest.mark.usefixtures("quick_outlines")
@pytest.mark.parametrize("num_writers", [1, 2, 3])
def test_any_number_of_writers(num_writers):
    pool = synthetic.glyphs(num_writers)
    assert set(pool.owner_test) == set(pool.owner_train) == set(range(num_writers))


@pytest.mark.usefixtures("quick_outlines")
def test_writers_differ_in_what_and_how_they_write():
    pool = synthetic.glyphs(6, seed=4)
    frequencies = np.array([np.bincount(pool.y_train[pool.owner_train == w], minlength=62) for w in range(6)])
    frequencies = frequencies / frequencies.sum(1, keepdims=True)
    distances = abs(frequencies[:, None] - frequencies).sum(-1)[np.triu_indices(6, 1)] / 2
    assert distances.min() > 0.2  # total variation
    ink = [pool.x_train[pool.owner_train == w].mean() for w in range(6)]
    assert max(ink) > 1.2 * min(ink)


def test_textures_are_balanced():
    pool = synthetic.textures(10, 205, 50)
    assert pool.x_train.shape == (205, 32, 32, 3)
    assert pool.x_train.dtype == np.uint8
    assert sorted(np.bincount(pool.y_train)) == [20] * 5 + [21] * 5
    assert np.bincount(pool.y_test).tolist() == [5] * 10
    assert pool.owner_train is None
    assert (pool.name, pool.source) == ("textures", "embedded textures")
    hundred = synthetic.textures(100, 200, 100)
    assert np.bincount(hundred.y_train).tolist() == [2] * 100
    assert (hundred.name, hundred.num_classes) == ("textures100", 100)


@pytest.mark.usefixtures("quick_outlines")
def test_digits_are_balanced():
    pool = synthetic.digits(105, 50)
    assert (pool.x_train.shape, pool.x_train.dtype) == ((105, 28, 28, 1), np.uint8)
    assert sorted(np.bincount(pool.y_train)) == [10] * 5 + [11] * 5
    assert np.bincount(pool.y_test).tolist() == [5] * 10
    assert (pool.owner_train, pool.num_classes, pool.source) == (None, 10, "embedded digits")


@pytest.mark.usefixtures("quick_outlines")
@pytest.mark.parametrize(
    "make",
    [
        lambda seed: synthetic.glyphs(2, seed=seed),
        lambda seed: synthetic.digits(40, 20, seed=seed),
        lambda seed: synthetic.textures(10, 40, 20, seed=seed),
    ],
)
def test_the_seed_decides_and_the_cache_changes_nothing(cache, make):
    first, other = make(0), make(1)
    assert not np.array_equal(first.x_train[:20], other.x_train[:20])
    assert len(list(cache.iterdir())) == 2
    assert same(first, make(0))
    for path in cache.iterdir():
        path.unlink()
    assert same(first, make(0))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"PK nonsense"])
def test_a_damaged_cache_file_is_made_anew(cache, damage):
    pool = synthetic.textures(10, 40, 20)
    (path,) = cache.iterdir()
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert same(pool, synthetic.textures(10, 40, 20))
    with np.load(path) as file:
        assert np.array_equal(file["x_train"], pool.x_train)
    altered = bytearray(good)
    altered[len(good) // 2] ^= 255
    path.write_bytes(altered)
    assert same(pool, synthetic.textures(10, 40, 20))
    np.savez(path, x_train=pool.x_train)
    assert same(pool, synthetic.textures(10, 40, 20))


def test_a_cache_that_cannot_be_written_only_costs_time(cache, monkeypatch):
    cache.parent.joinpath("file").write_text("in the way")
    monkeypatch.setenv("FEDLAB_CACHE", str(cache.parent / "file"))
    assert len(synthetic.textures(10, 40, 20).x_train) == 40


def test_bad_input():
    with pytest.raises(InputError, match="glyphs: writers is 0; there must be at least one"):
        synthetic.glyphs(0)
    with pytest.raises(InputError, match="10 or 100 classes, not 20"):
        synthetic.textures(20, 100, 100)
    with pytest.raises(InputError, match="textures: test is 0; there must be at least one"):
        synthetic.textures(10, 100, 0)
    with pytest.raises(InputError, match="digits: train is 0"):
        synthetic.digits(0, 100)


def nearest_neighbour(x, y, test_x, test_y) -> float:
    x, test_x = (a.reshape(len(a), -1).astype(np.float32) / 255 for a in (x, test_x))
    distance = (x**2).sum(1) - 2 * test_x @ x.T
    return float(np.mean(y[distance.argmin(1)] == test_y))


@pytest.mark.usefixtures("quick_outlines")
def test_pooled_glyphs_are_easier_than_one_writer_alone():
    pool = synthetic.glyphs(20)
    pooled = nearest_neighbour(pool.x_train, pool.y_train, pool.x_test, pool.y_test)
    alone = []
    for writer in range(20):
        mine, test = pool.owner_train == writer, pool.owner_test == writer
        alone.append(nearest_neighbour(pool.x_train[mine], pool.y_train[mine], pool.x_test[test], pool.y_test[test]))
    assert 0.5 < pooled < 0.95
    assert np.mean(alone) < pooled - 0.1


def test_pixels_alone_hardly_tell_textures_apart():
    pool = synthetic.textures(10, 2000, 500)
    assert 0.12 < nearest_neighbour(*pool[:4]) < 0.5
