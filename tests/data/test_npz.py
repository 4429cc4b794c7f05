"""One's own data: by name, beside others of that name, checked, imported; and what is no data set."""

import io
import os
import zipfile

import numpy as np
import pytest

from fedlab_lite.cli import main
from fedlab_lite.data import commands, federated, npz, which
from fedlab_lite.papers import presets, results
from fedlab_lite.plots import style
from fedlab_lite.runs import Settings, runner
from fedlab_lite.util import CorruptFileError, InputError, MissingDataError, files


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def rows(n: int = 20, **changes):
    x = np.random.default_rng(0).random((n, 4, 4)).astype(np.float32)
    good = {"x_train": x, "y_train": np.arange(n) % 2, "x_test": x[: n // 2], "y_test": np.arange(n // 2) % 2}
    return {key: value for key, value in (good | changes).items() if value is not None}


OPTIONS = {"partition": "iid", "num_clients": 2}


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_file_is_a_data_set_by_its_name(folder):
    np.savez(folder / "mine.npz", **rows())
    data = federated("mine", **OPTIONS)
    assert (data.name, data.num_classes, data.input_shape) == ("mine", 2, (4, 4, 1))
    digest = npz.read(folder / "mine.npz").digest()[:12]
    assert data.source == which.describe("mine") == f"own file mine.npz, sha256 {digest}"
    assert federated("npz:mine", **OPTIONS).fingerprint() == data.fingerprint()
    settings = presets.settings("fedeq", "fig04_mlp_vs_deq_mlp", "quick", dataset="mine")
    assert data.source in style.heading("quick", settings)


def test_a_run_says_its_source_and_its_name_follows_the_rows(folder):
    np.savez(folder / "mine.npz", **rows())
    settings = Settings(dataset="mine", **OPTIONS, num_rounds=1, model_options={"width": 8, "depth": 1})
    first = runner.run(settings, progress=False)
    assert first.data_source.startswith("own file mine.npz, sha256 ")
    np.savez(folder / "mine.npz", **rows(x_train=rows()["x_train"] + 1))
    os.utime(folder / "mine.npz", ns=(1, 1))
    second = runner.run(settings, progress=False)  # the same process: nothing of the old file is left
    assert second.data_source != first.data_source
    assert runner.run_names(first) != runner.run_names(second)


def test_a_figure_says_that_the_data_are_ones_own(folder, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setenv("MPLBACKEND", "agg")
    fig = plt.figure()
    monkeypatch.setattr(fig, "savefig", lambda buffer, **_: buffer.write(fig.texts[-1].get_text().encode()))
    result = {"preset": "quick", "word": "reproduced", "scope": "counted", "paper": "p", "item": "i"}
    drawn = results._drawn(fig, result | {"data_source": "own file mine.npz, sha256 12"})
    assert drawn["png"].decode() == "own file mine.npz, sha256 12 · quick · counted · reproduced"
    assert (
        results._drawn(fig, result | {"data_source": "embedded digits"})["svg"].decode()
        == "quick · counted · reproduced"
    )
    plt.close(fig)


def test_two_of_one_name_are_an_error_that_names_both(folder):
    np.savez(folder / "digits.npz", **rows())
    settings = Settings(dataset="digits", **OPTIONS, train_size=10)  # so `fedlab list` and the like still work
    with pytest.raises(InputError, match=r"the embedded digits and your own file .*digits.npz.* Choose one: embedded:"):
        runner.build_problem(settings)
    assert federated("npz:digits", **OPTIONS).source.startswith("own file digits.npz")
    embedded = federated("embedded:digits", **OPTIONS, train_size=10)
    assert embedded.source == "embedded digits"
    (folder / "digits.npz").unlink()
    assert federated("digits", **OPTIONS, train_size=10).fingerprint() == embedded.fingerprint()
    with pytest.raises(MissingDataError, match=r"digits\.npz does not exist"):
        federated("npz:digits", **OPTIONS)


def test_an_official_archive_beside_a_file_of_its_name(folder, monkeypatch):
    np.savez(
        folder / "cifar10.npz",
        **rows(x_train=np.zeros((20, 32, 32, 3), np.uint8), x_test=np.zeros((10, 32, 32, 3), np.uint8)),
    )
    assert which.kind_of("cifar10") == "npz"
    (folder / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"the official cifar10 and your own file .*official:cifar10 or npz:cifar10"):
        which.kind_of("cifar10")
    assert [row.state for row in commands.status() if row.name == "npz:cifar10"] == ["ready"]
    with pytest.raises(CorruptFileError, match="truncated or altered"):
        federated("official:cifar10", **OPTIONS)


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
@pytest.mark.parametrize("name", ["fashion_mnist", "mine"])
def test_what_is_no_file_is_never_passed_over(folder, monkeypatch, kind, name):
    """Also where the system has a copy of the official files."""
    path = folder / f"{name}.npz"
    {"folder": path.mkdir, "link": lambda: path.symlink_to("nowhere"), "fifo": lambda: os.mkfifo(path)}[kind]()
    with pytest.raises(InputError, match=f"{name}.npz is not a file|two data sets have the name '{name}'"):
        federated(name, **OPTIONS)
    assert any(row.state == "damaged" for row in commands.status() if row.name.endswith(name))


@pytest.mark.parametrize("name", ["mydigit", "npz:../mine", "../mine", "npz:", "embedded:mine", "official:digits", ""])
def test_names_that_no_data_set_has(folder, name):
    np.savez(folder / "mydigits.npz", **rows())
    with pytest.raises(
        InputError, match=r"unknown data set .*did you mean 'mydigits'" if name == "mydigit" else "unknown"
    ):
        Settings(dataset=name)


# --- what is wrong with a file --------------------------------------------------------------------------------------


def test_all_that_is_wrong_at_once(folder, capsys):
    x = rows()["x_train"].copy()
    x[3] = np.nan
    np.savez(
        folder / "bad.npz",
        **rows(x_train=x, y_train=np.arange(20) % 2 + 1, y_test=None, owner_train=np.ones(3), oops=x),
    )
    assert main(["data", "check", str(folder / "bad.npz")]) == 2
    said = capsys.readouterr().err
    for words in (
        "it has 'oops'",
        "it has no y_test",
        "row 3 of x_train holds NaN or infinity",
        "it has only one of owner_train and owner_test",
        "owner_train is float64",
        "owner_train has shape (3,), but there are 20 rows",
    ):
        assert words in said
    assert main(["data", "status"]) == 0
    assert "bad: damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_train": np.arange(20) % 2 + 1, "y_test": np.arange(10) % 2 + 1}, "and no row has 0; number the classes"),
        ({"y_train": np.arange(20) % 2 * 2}, "and no row has 1"),
        ({"y_test": np.arange(10) % 3}, "y_test has label 2, which no training row has"),
        ({"y_train": np.zeros(20, int), "y_test": np.zeros(10, int)}, "y_train has only one label"),
        ({"y_train": -np.arange(20)}, "y_train runs from -19 to 0, but must lie in 0"),
        ({"x_test": np.zeros((10, 4, 5), np.float32)}, "convert one to the other"),
        ({"x_test": np.zeros((10, 4, 4))}, "convert one to the other"),
        ({"x_train": np.zeros(20)}, "x_train has shape (20,) and y_train (20,); both need one row per sample"),
        ({"x_train": np.float32(1)}, "x_train has shape () and y_train (20,); both need one row per sample"),
        ({"x_train": np.array([{}] * 20)}, "x_train holds Python objects"),
        ({"x_train": np.array([["a"] * 4] * 20)}, "convert it to uint8 pixels or float32"),
        ({"x_train": np.zeros((0, 4, 4), np.float32), "y_train": np.zeros(0, int)}, "x_train and y_train have no rows"),
        ({"task": "next_character"}, "it has 'task', which is not part of a data set"),
        ({"label_words": ["a", "b", "c"]}, "label_words has 3 words for 2 classes; give one word per label"),
        ({"label_words": ["a", "a"]}, "label_words has one word twice: a"),
        ({"label_words": [1, 2]}, "label_words is int64 (2,); save one word per label, a list of text"),
    ],
)
def test_what_is_wrong(folder, changes, words):
    np.savez(folder / "bad.npz", **rows(**changes))
    with pytest.raises(InputError) as caught:
        federated("bad", **OPTIONS)
    assert words in str(caught.value)


@pytest.mark.parametrize("shape", ["(10000000000000, 4, 4)", "(-20, 4, 4)", "(" * 3000, "(" + "1, " * 30_000 + ")"])
def test_headers_that_lie(folder, shape):
    """Nothing is allocated that the file does not hold."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    lying = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header
    np.savez(folder / "bad.npz", **rows(x_train=None))
    with zipfile.ZipFile(folder / "bad.npz", "a") as archive:
        archive.writestr("x_train.npy", lying)
    with pytest.raises((InputError, CorruptFileError), match=r"says|cannot be read"):
        npz.read(folder / "bad.npz")
    assert [row.state for row in commands.status() if row.name == "bad"] == ["damaged"]


# --- importing ------------------------------------------------------------------------------------------------------


def table(folder, suffix=".csv", **columns):
    import pandas as pd

    values = {"a": np.arange(12) / 3, "b": np.arange(12), "town": ["x", "y", "z"] * 4, "label": ["no", "yes"] * 6}
    frame = pd.DataFrame(values | columns)
    path = folder / f"people{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_becomes_a_data_set(folder, tmp_path, capsys, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    assert main(["data", "import", str(table(tmp_path, suffix)), "--owner", "town"]) == 0
    said = capsys.readouterr().out
    assert "2 float32, 2 classes, 9 + 3 rows, 3 owners, sha256" in said
    assert "labels: 0 no, 1 yes" in said
    data = federated("people", partition="natural", num_clients=3)
    assert (data.size.tolist(), data.test_size.tolist()) == ([3] * 3, [1] * 3)
    assert (data.client_names, data.label_words) == (("x", "y", "z"), ("no", "yes"))
    assert main(["data", "check", "people"]) == 0
    said = "labels: 0 no, 1 yes\nfeatures: a, b\nclassification; x runs from 0 to 11; networks see 0 to 11"
    assert said in capsys.readouterr().out
    again = tmp_path / "again.npz"
    main(["data", "import", str(tmp_path / f"people{suffix}"), "--owner", "town", "--output", str(again)])
    assert again.read_bytes() == (folder / "people.npz").read_bytes()  # the same rows, drawn by the seed
    assert main(["data", "import", str(tmp_path / f"people{suffix}"), "--owner", "town"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_names_of_owners_and_words_of_labels_change_no_rows(folder):
    """A file without words, and with numbers for owners, has the rows, the digest and the runs that it had."""
    owners = np.array(["x", "y"] * 10), np.array(["x", "y"] * 5)
    numbers = [(each == "y").astype(np.int32) for each in owners]
    np.savez(folder / "plain.npz", **rows(owner_train=numbers[0], owner_test=numbers[1]))
    np.savez(folder / "named.npz", **rows(owner_train=owners[0], owner_test=owners[1], label_words=["no", "yes"]))
    np.savez(folder / "words.npz", **rows(label_words=["no", "yes"]))
    np.savez(folder / "none.npz", **rows())
    options = {"partition": "natural", "num_clients": 2, "train_size": 12, "test_size": 6}
    plain, named = (federated(name, **options) for name in ("plain", "named"))
    assert (plain.client_names, plain.label_words) == (("0", "1"), ())
    assert (named.client_names, named.label_words) == (("x", "y"), ("no", "yes"))
    assert named.fingerprint() == plain.fingerprint()
    assert npz.read(folder / "words.npz").digest() == npz.read(folder / "none.npz").digest()
    kept, newcomer = named.split(1)
    assert {*kept.client_names, *newcomer.client_names} == {"x", "y"}
    assert kept.label_words == ("no", "yes")


def test_words_for_the_labels_of_an_array():
    x, y = rows()["x_train"], rows()["y_train"]
    assert federated(x, y, **OPTIONS, label_words=["no", "yes"]).label_words == ("no", "yes")
    for words, message in ((["no"], "1 words for 2 classes"), (["no", "no"], "one word twice: no")):
        with pytest.raises(InputError, match=message):
            federated(x, y, **OPTIONS, label_words=words)
    with pytest.raises(InputError, match="label_words only with an array"):
        federated("digits", **OPTIONS, label_words=["no", "yes"])


def test_a_column_says_which_rows_are_for_testing(folder, tmp_path):
    path = table(tmp_path, town=["train"] * 8 + ["test"] * 4)
    assert main(["data", "import", str(path), "--split", "town"]) == 0
    assert npz.read(folder / "people.npz").x_test[:, 1].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("columns", "arguments", "words"),
    [
        ({}, [], "values that are not numbers in town"),
        ({}, ["--label", "labl"], "did you mean 'label'"),
        ({}, ["--split", "town"], "unknown value of column 'town'"),
        ({"a": [np.nan] * 12}, ["--owner", "town"], "a is empty or not a finite number in row 0"),
        ({"label": ["no"] * 12}, ["--owner", "town"], "y_train has only one label"),
        (
            {},
            ["--owner", "town", "--test-fraction", "1.5"],
            "test_fraction must be of type float, above 0 and below 1, got 1.5",
        ),
        ({}, ["--owner", "town", "--output", "people.csv"], "a file <name>.npz"),
    ],
)
def test_tables_that_make_no_data_set(folder, tmp_path, capsys, columns, arguments, words):
    assert main(["data", "import", str(table(tmp_path, **columns)), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(folder.iterdir())


def images(folder, size=(6, 5)):
    from PIL import Image

    for label, grey in (("cat", 200), ("dog", 30)):
        (folder / label).mkdir(parents=True)
        for k in range(5):
            Image.new("L", size, grey + k).save(folder / label / f"{k}.png")


def test_a_folder_of_images_becomes_a_data_set(folder, tmp_path, capsys):
    for part in ("train", "test"):
        images(tmp_path / "pets" / part)
    assert main(["data", "import", str(tmp_path / "pets")]) == 0
    assert "5x6x1 uint8, 2 classes, 10 + 10 rows" in capsys.readouterr().out
    images(tmp_path / "more", (9, 9))
    assert main(["data", "import", str(tmp_path / "more"), "--size", "4x3"]) == 0
    found = npz.read(folder / "more.npz")
    assert found.x_train.shape == (8, 4, 3, 1)
    assert found.y_test.tolist() == [0, 1]
    assert found.x_train[found.y_train == 0].min() >= 200


def test_folders_that_make_no_data_set(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    images(tmp_path / "pets")
    images(tmp_path / "pets" / "sub", (9, 9))
    for label in ("cat", "dog"):
        (tmp_path / "pets" / "sub" / label / "0.png").rename(tmp_path / "pets" / label / "larger.png")
    assert main(["data", "import", str(tmp_path / "empty")]) == 2
    assert main(["data", "import", str(tmp_path / "pets")]) == 2
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("no image")
    assert main(["data", "import", str(tmp_path / "pets"), "--size", "4"]) == 2
    said = capsys.readouterr().err
    for words in ("has no images", "the images have 2 sizes (5x6, 9x9", "notes.txt cannot be read as an image"):
        assert words in said


def test_nothing_is_unpickled(folder):
    class Bomb:
        def __reduce__(self):
            return (open, (str(folder / "exploded"), "w"))

    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()] * 20), allow_pickle=True)
    np.savez(folder / "bad.npz", **rows(x_train=None))
    with zipfile.ZipFile(folder / "bad.npz", "a") as archive:
        archive.writestr("x_train.npy", buffer.getvalue())
    with pytest.raises(InputError, match="Python objects"):
        npz.read(folder / "bad.npz")
    assert not (folder / "exploded").exists()
    assert files.data_dir() == folder
