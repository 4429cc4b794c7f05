"""Real data: the npz schema, the publishers' formats written small, checksums, and what to do when they are missing."""

import gzip
import hashlib
import http.client
import io
import os
import pickle
import tarfile
import urllib.request
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlab_lite.data import commands, npz, sources, which
from fedlab_lite.util import CorruptFileError, InputError, MissingDataError, sha256_of_arrays


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    without = replace(sources.SOURCES["fashion_mnist"], package_dir=str(tmp_path / "nowhere"))
    monkeypatch.setitem(sources.SOURCES, "fashion_mnist", without)
    return tmp_path / "data"


def arrays(n: int = 6, **changes):
    good = {"x_train": np.zeros((n, 32, 32, 3), np.uint8), "y_train": np.arange(n) % 10}
    good |= {"x_test": good["x_train"][:2] + 1, "y_test": good["y_train"][:2]}
    return {key: value for key, value in (good | changes).items() if value is not None}


def publish(monkeypatch, name: str, folder: Path) -> None:
    """Take the files that lie in `folder` for the published ones."""

    def known(file):
        content = (folder / file).read_bytes()
        plain = file.endswith(".gz") and not file.endswith(".tar.gz")
        return hashlib.sha256(gzip.decompress(content) if plain else content).hexdigest()

    source = sources.SOURCES[name]
    monkeypatch.setitem(sources.SOURCES, name, replace(source, files={file: known(file) for file in source.files}))


def write_tar(path: Path, members: dict[str, bytes], mode: str) -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


# --- npz ------------------------------------------------------------------------------------------------------------


def test_npz(folder):
    np.savez(folder / "cifar10.npz", **arrays())
    pool = which.load("cifar10")
    assert pool.x_train.shape == (6, 32, 32, 3)
    assert pool.y_test.tolist() == [0, 1]
    assert (pool.owner_train, pool.task) == (None, "classification")
    digest = sha256_of_arrays(dict(sorted(arrays().items())))
    assert pool.source == f"own file cifar10.npz, sha256 {digest[:12]}"
    np.savez_compressed(folder / "cifar10.npz", **arrays())
    assert which.load("cifar10").source == pool.source  # the arrays count, not the file
    np.savez(folder / "cifar10.npz", **arrays(x_train=np.ones((6, 32, 32, 3), np.uint8)))
    assert which.load("cifar10").source != pool.source


def test_a_known_copy_has_its_own_name(folder, monkeypatch):
    assert list(npz.KNOWN_COPIES.values()) == ["cifar10 (jpeg copy)"]
    monkeypatch.setitem(npz.KNOWN_COPIES, sha256_of_arrays(dict(sorted(arrays().items()))), "cifar10 (a known copy)")
    np.savez(folder / "cifar10.npz", **arrays())
    assert which.load("cifar10").source == "cifar10 (a known copy)"


def test_npz_with_owners_and_without_a_channel_axis(folder):
    x = np.zeros((3, 28, 28), np.uint8)
    owner = np.array(["w1", "w0", "w1"])
    part = {"x_train": x, "y_train": np.arange(3), "owner_train": owner}
    np.savez(folder / "femnist.npz", **part, **{key.replace("train", "test"): value for key, value in part.items()})
    pool = which.load("femnist")
    assert pool.x_test.shape == (3, 28, 28, 1)
    assert pool.owner_test.tolist() == ["w1", "w0", "w1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None, "x_test": None}, "has no x_test, y_test .it has x_train, y_train"),
        (
            {"y_train": np.arange(5)},
            r"x_train has shape \(6, 32, 32, 3\) and y_train \(5,\); both need one row",
        ),
        ({"y_test": np.zeros((2, 1), int)}, r"y_test has shape \(2, 1\); a classification needs one label per row"),
        ({"owner_train": np.arange(6)}, "only one of owner_train and owner_test"),
        (
            {"owner_train": np.arange(6), "owner_test": np.arange(3)},
            r"owner_test has shape \(3,\), but there are 2",
        ),
        ({"y_train": np.arange(6) + 5}, r"y_train runs from 5 to 10, but must lie in 0 \.\.\. 9"),
        ({"y_train": np.arange(6) * 1.0}, "y_train is float64"),
        ({"x_train": np.array([{}] * 6)}, "holds Python objects"),
    ],
)
def test_npz_that_breaks_the_schema(folder, changes, message):
    np.savez(folder / "cifar10.npz", **arrays(**changes))
    with pytest.raises(InputError, match=message):
        which.load("cifar10")
    assert commands.status()[1].state == "damaged"


@pytest.mark.parametrize("damage", [lambda b: b[:-30], lambda b: b"", lambda b: b[:900] + b"?" + b[901:]])
def test_a_damaged_npz(folder, damage):
    path = folder / "cifar10.npz"
    np.savez(path, **arrays())
    content = damage(path.read_bytes())
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"cifar10\.npz cannot be read.* Nothing was deleted"):
        which.load("cifar10")
    assert path.read_bytes() == content


# --- the publishers' formats ----------------------------------------------------------------------------------------


def write_fashion(folder: Path) -> np.ndarray:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (7, 28, 28), dtype=np.uint8)
    for part, rows in (("train", slice(0, 5)), ("t10k", slice(5, 7))):
        x, y = images[rows], np.arange(7, dtype=np.uint8)[rows]
        header = b"".join(k.to_bytes(4, "big") for k in (0x803, len(x), 28, 28))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + x.tobytes()))
        header = b"".join(k.to_bytes(4, "big") for k in (0x801, len(y)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + y.tobytes()))
    return images


def test_fashion_mnist(folder, monkeypatch):
    images = write_fashion(folder)
    publish(monkeypatch, "fashion_mnist", folder)
    pool = sources.load("fashion_mnist")
    assert np.array_equal(pool.x_train[..., 0], images[:5])
    assert np.array_equal(pool.x_test[..., 0], images[5:])
    assert pool.y_train.tolist() + pool.y_test.tolist() == list(range(7))
    assert pool.source == "fashion_mnist (official)"

    file = folder / "train-images-idx3-ubyte.gz"  # compressed anew: other bytes, the same content
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()), compresslevel=1))
    assert np.array_equal(sources.load("fashion_mnist").x_train, pool.x_train)

    content = bytearray(gzip.decompress(file.read_bytes()))
    content[-1] ^= 1
    expected = sources.SOURCES["fashion_mnist"].files["train-images-idx3-ubyte.gz"]
    file.write_bytes(gzip.compress(content))
    found = hashlib.sha256(content).hexdigest()
    with pytest.raises(CorruptFileError, match=f"train-images.* is {found}, expected {expected}"):
        sources.load("fashion_mnist")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CorruptFileError, match=r"train-images.* may be truncated"):
        sources.load("fashion_mnist")

    file.rename(folder / "elsewhere.gz")
    with pytest.raises(MissingDataError, match="apt-get install dataset-fashion-mnist"):
        sources.load("fashion_mnist")


def cifar_members(batches, folder: str, labels: bytes, protocol: int = 4) -> tuple[dict[str, bytes], np.ndarray]:
    pixels = np.random.default_rng(1).integers(0, 256, (2 * len(batches), 3, 32, 32), dtype=np.uint8)
    members = {}
    for k, name in enumerate(batches):
        batch = {b"data": pixels[2 * k : 2 * k + 2].reshape(2, 3072), labels: [k, k + 1], b"filenames": [b"a", b"b"]}
        members[f"{folder}/{name}"] = pickle.dumps(batch, protocol=protocol)
    members[f"{folder}/meta"] = b"not a pickle"
    return members, pixels.transpose(0, 2, 3, 1)


CIFAR = {
    "cifar10": ([f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"], "cifar-10-batches-py", b"labels"),
    "cifar100": (["train", "test"], "cifar-100-python", b"fine_labels"),
}


@pytest.mark.parametrize("name", CIFAR)
def test_cifar(folder, monkeypatch, name):
    members, pixels = cifar_members(*CIFAR[name])
    path = folder / next(iter(sources.SOURCES[name].files))
    write_tar(path, members, "w:gz")
    publish(monkeypatch, name, folder)
    pool = sources.load(name)
    assert np.array_equal(pool.x_train, pixels[:-2])
    assert np.array_equal(pool.x_test, pixels[-2:])
    assert pool.y_train.tolist()[:2] == [0, 1]
    assert pool.y_test.tolist() == [len(pixels) // 2 - 1, len(pixels) // 2]
    assert pool.source == f"{name} (official)"


def test_a_cifar_pickle_of_python_2(folder, monkeypatch):
    """As Python 2 wrote them: protocol 2, numpy.core.multiarray._reconstruct, strings without an encoding."""
    data = np.arange(2 * 3072, dtype=np.uint8)
    old = b"".join(
        [
            b"\x80\x02}(U\x04data",
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c\x86",
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + (2 * 3072).to_bytes(4, "little") + data.tobytes() + b"tb",
            b"U\x0bfine_labels](K\x05K\x07eu.",
        ]
    )
    path = folder / "cifar-100-python.tar.gz"
    write_tar(path, {"cifar-100-python/train": old, "cifar-100-python/test": old}, "w:gz")
    publish(monkeypatch, "cifar100", folder)
    pool = sources.load("cifar100")
    assert pool.y_train.tolist() == [5, 7]
    assert np.array_equal(pool.x_train.transpose(0, 3, 1, 2).reshape(-1), data)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("owned",)


def test_a_pickle_cannot_run_code(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    bad = pickle.dumps(Malicious())
    write_tar(folder / "cifar-100-python.tar.gz", {"cifar-100-python/train": bad, "cifar-100-python/test": bad}, "w:gz")
    publish(monkeypatch, "cifar100", folder)
    with pytest.raises(CorruptFileError, match=r"posix\.mkdir|nt\.mkdir"):
        sources.load("cifar100")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:50] + b"?" + b[51:], lambda b: b""])
def test_a_truncated_or_altered_archive(folder, monkeypatch, damage):
    path = folder / "cifar-10-python.tar.gz"
    write_tar(path, cifar_members(*CIFAR["cifar10"])[0], "w:gz")
    publish(monkeypatch, "cifar10", folder)
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    content = damage(path.read_bytes())
    path.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    message = (
        rf"cifar-10-python\.tar\.gz is truncated or altered: sha256 is {found}, expected {expected}.*fetch cifar10"
    )
    for call in (sources.load, sources.fetch):
        with pytest.raises(CorruptFileError, match=message):
            call("cifar10")
    row = commands.status()[1]
    assert (row.name, row.state) == ("cifar10", "damaged")
    assert found in row.how
    assert path.read_bytes() == content


def test_an_archive_without_its_batches(folder, monkeypatch):
    write_tar(folder / "cifar-10-python.tar.gz", {"readme": b""}, "w:gz")
    publish(monkeypatch, "cifar10", folder)
    with pytest.raises(CorruptFileError, match="data_batch_1"):
        sources.load("cifar10")


def write_femnist(folder: Path) -> None:
    import h5py

    for part, sizes in (("train", {"f01": 3, "a07": 2}), ("test", {"a07": 1, "f01": 1})):
        with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as file:
            for writer, n in sizes.items():
                pixels = np.ones((n, 28, 28), np.float32)
                pixels[:, 0, 0], pixels[:, 0, 1] = 0.0, 0.4
                file[f"examples/{writer}/pixels"] = pixels
                file[f"examples/{writer}/label"] = np.full(n, 61 if writer == "f01" else 3, np.int32)


def assert_femnist(pool) -> None:
    assert pool.x_train.shape == (5, 28, 28, 1)
    assert pool.x_train.dtype == np.uint8
    assert pool.x_train[0, 0, :3, 0].tolist() == [255, 153, 0]  # ink is bright
    assert pool.y_train.tolist() == [3, 3, 61, 61, 61]
    assert pool.owner_train.tolist() == [0, 0, 1, 1, 1]
    assert pool.owner_test.tolist() == [0, 1]


def test_femnist_unpacked(folder):
    write_femnist(folder)
    pool = sources.load("femnist")
    assert_femnist(pool)
    assert pool.source.startswith("femnist (unpacked, sha256 ")
    assert commands.status()[3].state == "ready"
    path = folder / "fed_emnist_test.h5"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(CorruptFileError, match="may be truncated"):
        sources.load("femnist")


def test_femnist_archive_is_unpacked_in_memory(folder, monkeypatch, tmp_path):
    write_femnist(tmp_path)
    members = {path.name: path.read_bytes() for path in tmp_path.glob("*.h5")}
    write_tar(folder / "fed_emnist.tar.bz2", members, "w:bz2")
    publish(monkeypatch, "femnist", folder)
    pool = sources.load("femnist")
    assert_femnist(pool)
    assert pool.source == "femnist (official)"
    assert len(list(folder.iterdir())) == 1
    assert not (tmp_path / "cache").exists()
    write_tar(folder / "fed_emnist.tar.bz2", {"fed_emnist_train.h5": b""}, "w:bz2")
    publish(monkeypatch, "femnist", folder)
    with pytest.raises(CorruptFileError, match=r"fed_emnist\.tar\.bz2 cannot be read.*fed_emnist_test\.h5"):
        sources.load("femnist")


def recording(windows: int, number: int) -> str:
    """So many windows as HARBox has them: a time, then nine readings; the first of each window is its `number`."""
    readings = np.zeros((windows, 100, 10))
    readings[..., 0] = 1.6e12 + 20 * np.arange(100)  # milliseconds
    readings[..., 1:] = np.linspace(-40, 40, 900).reshape(100, 9)
    readings[:, 0, 1] = number + np.arange(windows)
    return "".join(" ".join(f"{value:.4f}" for value in line) + "\n" for line in readings.reshape(-1, 10))


def write_harbox(folder: Path, monkeypatch, **changes: str | None) -> None:
    """Users 2 and 10, of unequal diligence; what other archives hold besides is passed over."""
    files = {"2/Call_train.txt": recording(9, 0), "2/typing_train.txt": recording(3, 50)}
    files |= {"10/Wave_train.txt": recording(2, 100), "10/Hop_train.txt": recording(1, 150)}
    files |= {"2/.DS_Store": "", "data_pre.py": "", "2/Call_test.txt": "nothing"} | changes
    with zipfile.ZipFile(folder / "large_scale_HARBox.zip", "w") as archive:
        archive.writestr("__MACOSX/large_scale_HARBox/2/._Call_train.txt", b"\x00\x05")
        for name, content in files.items():
            if content is not None:
                archive.writestr(f"large_scale_HARBox/{name}", content)
    publish(monkeypatch, "harbox", folder)


def test_harbox(folder, monkeypatch):
    write_harbox(folder, monkeypatch)
    pool = sources.load("harbox")
    assert (pool.source, pool.num_classes, pool.task) == ("harbox (official)", 5, "classification")
    assert (pool.x_train.shape, pool.x_train.dtype) == ((11, 900), np.float32)
    assert pool.owner_train.tolist() == [2] * 9 + [10] * 2  # 12 and 3 windows, of which 3 and 1 are for testing
    assert pool.owner_test.tolist() == [2] * 3 + [10]
    order = np.random.RandomState(0).permutation(12)  # what scikit-learn's train_test_split does
    numbers = np.r_[np.arange(9), 50 + np.arange(3)]
    assert pool.x_test[:3, 0].tolist() == numbers[order[:3]].tolist()
    assert pool.x_train[:9, 0].tolist() == numbers[order[3:]].tolist()
    hop_before_wave, order = np.array([150, 100, 101]), np.random.RandomState(0).permutation(3)
    assert [*pool.x_test[3:, 0], *pool.x_train[9:, 0]] == hop_before_wave[order].tolist()
    activity = {0: 0, 50: 2, 100: 4, 150: 1}
    for x, y in ((pool.x_train, pool.y_train), (pool.x_test, pool.y_test)):
        assert y.tolist() == [activity[int(number) // 50 * 50] for number in x[:, 0]]
        np.testing.assert_allclose(x[:, 1:], np.tile(np.linspace(-40, 40, 900)[1:], (len(x), 1)), atol=1e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (recording(2, 0)[:-40], r"the number of columns changed from 10 to \d at row 200"),
        (recording(2, 0).rsplit("\n", 2)[0], "cannot reshape array of size 1791"),
        (
            "".join(f"{line.partition(' ')[2]}\n" for line in recording(1, 0).splitlines()),
            "cannot reshape array of size 8",
        ),
        (recording(1, 7).replace("7.0000", "seven"), "could not convert string 'seven'"),
    ],
    ids=["cut in a line", "cut between lines", "columns", "words"],
)
def test_a_damaged_recording(folder, monkeypatch, content, message):
    write_harbox(folder, monkeypatch, **{"10/Hop_train.txt": content})
    with pytest.raises(CorruptFileError, match=rf"large_scale_HARBox\.zip cannot be read.*{message}"):
        sources.load("harbox")


def test_harbox_with_another_activity_or_with_none(folder, monkeypatch):
    write_harbox(folder, monkeypatch, **{"10/Swim_train.txt": recording(1, 0)})
    with pytest.raises(CorruptFileError, match=r"large_scale_HARBox\.zip cannot be read.*'?swim"):
        sources.load("harbox")
    names = ("2/Call", "2/typing", "10/Wave", "10/Hop")
    write_harbox(folder, monkeypatch, **{f"{name}_train.txt": None for name in names})
    with pytest.raises(CorruptFileError, match=r"it holds no <user>/<Activity>_train\.txt"):
        sources.load("harbox")


def test_a_truncated_harbox(folder, monkeypatch):
    write_harbox(folder, monkeypatch)
    path = folder / "large_scale_HARBox.zip"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CorruptFileError, match=r"large_scale_HARBox\.zip is truncated or altered: sha256 is"):
        sources.load("harbox")
    assert commands.status()[-1][:2] == ("harbox", "damaged")


# --- missing, status, fetch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sources.SOURCES)
def test_missing_data_name_every_way_to_get_them(folder, name):
    with pytest.raises(MissingDataError) as caught:
        sources.load(name)
    message = str(caught.value)
    assert f"{name} is not on this machine" in message
    assert f"fedlab data fetch {name}" in message
    assert (str(folder / name) + ".npz: x_train, y_train, x_test, y_test" in message) == (name != "shakespeare")
    assert next(iter(sources.SOURCES[name].files)) in message
    assert ("fed_emnist_train.h5" in message) == (name == "femnist")
    assert ("shakespeare_train.h5" in message) == (name == "shakespeare")
    assert ("dataset-fashion-mnist" in message) == (name == "fashion_mnist")


def test_status_and_unknown_names(folder):
    np.savez(folder / "cifar10.npz", **arrays())
    rows = {row.name: row for row in commands.status()}
    assert list(rows) == ["fashion_mnist", "cifar10", "cifar100", "femnist", "shakespeare", "harbox"]
    assert [row.state for row in rows.values()] == ["missing", "ready", *["missing"] * 4]
    assert rows["cifar10"].source == f"{folder / 'cifar10.npz'} (own file: {which.load('cifar10').describe()})"
    assert "data fetch femnist" in rows["femnist"].how
    for call in (sources.load, sources.fetch):
        with pytest.raises(InputError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
            call("cifar")


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """A folder in place of the publishers' servers: there is no network here."""
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.setattr("urllib.request.urlopen", lambda url, **_: (folder / url.rpartition("/")[2]).open("rb"))
    return folder


def test_fetch(folder, monkeypatch, shop):
    write_fashion(shop)
    publish(monkeypatch, "fashion_mnist", shop)
    asked, urlopen = [], urllib.request.urlopen
    monkeypatch.setattr("urllib.request.urlopen", lambda url, **_: asked.append(url) or urlopen(url))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes((shop / "train-labels-idx1-ubyte.gz").read_bytes())
    assert [path.parent for path in sources.fetch("fashion_mnist")] == [folder] * 4
    source = sources.SOURCES["fashion_mnist"]
    names = list(source.files)
    assert asked == [source.url + names[k] for k in (0, 2, 3)]
    assert all((folder / name).read_bytes() == (shop / name).read_bytes() for name in names)
    assert len(sources.load("fashion_mnist").x_train) == 5
    sources.fetch("fashion_mnist")
    assert len(asked) == 3  # all there: nothing is fetched


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (None, MissingDataError, "could not fetch https://.*No such file.*Ways to get it"),
        (b"", CorruptFileError, "https://.*/cifar-10-python.tar.gz is truncated or altered: sha256 is e3b0c"),
    ],
)
def test_fetch_fails(folder, shop, content, kind, message):
    if content is not None:
        (shop / "cifar-10-python.tar.gz").write_bytes(content)
    with pytest.raises(kind, match=message):
        sources.fetch("cifar10")
    assert not list(folder.iterdir())


def test_fetch_stops_where_an_answer_is_cut(folder, monkeypatch):
    def cut(url, **_):
        raise http.client.IncompleteRead(b"half")

    monkeypatch.setattr("urllib.request.urlopen", cut)
    with pytest.raises(MissingDataError, match="IncompleteRead"):
        sources.fetch("cifar10")
    assert not list(folder.iterdir())


def test_fetch_leaves_a_damaged_file_alone(folder):
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"something else"))
    with pytest.raises(CorruptFileError, match=r"train-images.* truncated or altered"):
        sources.fetch("fashion_mnist")
    assert gzip.decompress(path.read_bytes()) == b"something else"


DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.skipif(not DEBIAN.exists(), reason="dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("FEDLAB_DATA", "/nonexistent")
    pool = sources.load("fashion_mnist")
    assert pool.x_train.shape == (60_000, 28, 28, 1)
    assert pool.x_test.shape == (10_000, 28, 28, 1)
    assert np.bincount(pool.y_train).tolist() == [6000] * 10
    assert np.bincount(pool.y_test).tolist() == [1000] * 10
    assert pool.source == "fashion_mnist (official)"
    assert pool.x_train.mean() == pytest.approx(72.94, abs=0.01)
