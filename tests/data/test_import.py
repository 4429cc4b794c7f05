"""Import keeps meaning: each conversion is exact, or refused, and the output says it."""

import gzip
import json
import os
import unicodedata

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedlab_lite.cli import main
from fedlab_lite.data import federated, npz, ranges
from fedlab_lite.util import InputError, memory


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def said(capsys):
    """Run `fedlab data import`, and return the words that it printed, as one line."""

    def run(*arguments, rc=0):
        assert main(["data", "import", *map(str, arguments)]) == rc
        streams = capsys.readouterr()
        return " ".join((streams.err if rc else streams.out).split())

    return run


# --- pictures -------------------------------------------------------------------------------------------------------


def pictures(root, *arrays, suffix=".png", mark=1, place=0, **options):
    """Two classes, cat and dog, with the same pictures in each, told apart by their first pixel."""
    for k, label in enumerate(("cat", "dog")):
        (root / label).mkdir(parents=True)
        for i, array in enumerate(arrays):
            array = array.copy()
            array.flat[place] = (i + len(arrays) * k) * mark
            Image.fromarray(array).save(root / label / f"{i}{suffix}", **options)
    return root


def grey(kind, high, n=3):
    rng = np.random.default_rng(0)
    return [(rng.integers(0, 256, (4, 5)) / 255 * high).astype(kind) for _ in range(n)]


@pytest.mark.parametrize("classes", [7, 10, 11])
def test_a_file_with_a_published_name_has_its_classes(folder, tmp_path, said, capsys, classes):
    """Import, check and training agree on what `cifar10` is, before a file is written."""
    numbers = np.arange(4 * classes, dtype=np.uint8)
    x, y = np.broadcast_to(numbers[:, None, None, None], (4 * classes, 8, 8, 3)), np.arange(4 * classes) % classes
    np.savez(tmp_path / "mine.npz", train_images=x, train_labels=y, test_images=x[::-1], test_labels=y[::-1])
    words = said(tmp_path / "mine.npz", "--output", folder / "cifar10.npz", rc=0 if classes == 10 else 2)
    if classes != 10:
        assert f"a published data set with 10 classes, and this one has {classes}; choose another --output" in words
        assert list(folder.iterdir()) == []
        return
    assert main(["data", "check", "cifar10"]) == 0
    assert "10 classes" in capsys.readouterr().out
    assert federated("cifar10", partition="iid", num_clients=2).num_classes == 10


def test_check_reads_a_file_as_training_does(folder):
    x = np.zeros((8, 8, 8, 3), np.uint8)
    np.savez(folder / "cifar10.npz", x_train=x, y_train=np.arange(8) + 3, x_test=x, y_test=np.arange(8))
    assert main(["data", "check", "cifar10"]) == 2 == main(["data", "check", str(folder / "cifar10.npz")])
    with pytest.raises(InputError, match=r"y_train runs from 3 to 10, but must lie in 0 \.\.\. 9"):
        federated("cifar10", partition="iid", num_clients=2)


def test_labels_and_owners_stay_as_they_are_written(folder, tmp_path, said):
    rows = [f"{k}.5,{('01', '1', '10', '1.0')[k % 4]},{('001', '1')[k % 2]}" for k in range(24)]
    (tmp_path / "t.csv").write_text("\n".join(["a,label,owner", *rows]), encoding="utf-8")
    assert "4 classes" in said(tmp_path / "t.csv", "--owner", "owner")
    pool = npz.read(folder / "t.npz")
    assert sorted(pool.label_words) == ["01", "1", "1.0", "10"]
    assert {*pool.owner_train} == {"001", "1"}


def test_a_data_set_is_replaced_only_where_asked(folder, tmp_path, said):
    for name in ("t", "other"):
        rows = [f"{k}.5,{name}{k % 2}" for k in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,label", *rows]), encoding="utf-8")
    said(tmp_path / "t.csv")
    other = (tmp_path / "other.csv", "--output", folder / "t.npz")
    assert "t.npz exists already; choose another --output, or replace a file with --overwrite" in said(*other, rc=2)
    assert npz.read(folder / "t.npz").label_words == ("t0", "t1")
    said(*other, "--overwrite")
    assert npz.read(folder / "t.npz").label_words == ("other0", "other1")


def test_a_table_whose_first_line_has_numbers_and_a_word_has_no_line_of_names(folder, tmp_path, said):
    rows = [f"{5 + k / 10:.1f},{k % 7 / 2},{('setosa', 'virginica')[k % 2]}" for k in range(20)]
    (tmp_path / "iris.csv").write_text("\n".join(rows), encoding="utf-8")
    assert "it has no line of names, so the columns are called 0 to 2" in said(tmp_path / "iris.csv", "--label", "2")
    assert len(npz.read(folder / "iris.npz").x_train) == 16


def leaf_of(users):
    data = {user: {"x": [[k, 0.5] for k in range(5)], "y": [0, 1, 0, 1, 0]} for user in users}
    return {"users": users, "num_samples": [5] * len(users), "user_data": data}


def test_leaf(folder, tmp_path, said):
    (tmp_path / "all.json").write_text(json.dumps(leaf_of(["f01", "f1"])))
    assert "LEAF's JSON: 2 users own the rows" in said(tmp_path / "all.json")
    pool = npz.read(folder / "all.npz")
    assert (len(pool.x_train), len(pool.x_test), sorted({*pool.owner_train})) == (8, 2, ["f01", "f1"])
    for part, users in (("train", ["a", "b", "c"]), ("test", ["a", "b"])):
        (tmp_path / "leaf" / part).mkdir(parents=True)
        (tmp_path / "leaf" / part / "all.json").write_text(json.dumps(leaf_of(users)))
    assert "15 + 10 rows, 3 owners" in said(tmp_path / "leaf")
    assert npz.read(folder / "leaf.npz").x_test.tolist() == [[k, 0.5] for _ in "ab" for k in range(5)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user_data": {}}, "has no rows"),
        ({"users": []}, "is not LEAF's JSON, which has the form"),
        ({"num_samples": [4, 5]}, "user 'a' has 5 rows x and 5 labels y, but num_samples says 4"),
        ({"user_data": {"a": {"x": ["to be"] * 5, "y": ["o"] * 5}}}, "encode texts as numbers first"),
        ({"user_data": {"a": {"x": [[1], [1, 2]] + [[1]] * 3, "y": [0] * 5}}}, "the rows x differ in length"),
        ({"user_data": {"a": {"x": [[1]] * 5, "y": [0.5] * 5}}}, "a label is a word or a whole number"),
    ],
)
def test_no_leaf(tmp_path, said, change, words):
    (tmp_path / "t.json").write_text(json.dumps(leaf_of(["a", "b"]) | change))
    assert words in said(tmp_path / "t.json", rc=2)


def test_names_of_folders_that_are_no_text(tmp_path, said):
    root = pictures(tmp_path / "pets", *grey(np.uint8, 255))
    os.rename(root / "cat", os.fsencode(root) + b"/\xe9t")
    assert "is no text in UTF-8; rename the folder" in said(root, rc=2)


def test_16_bits_are_scaled_by_their_type_and_8_bits_among_them(folder, tmp_path, said):
    assert "16 bits: networks see black (0) as 0 and white (65535) as 1" in said(
        pictures(tmp_path / "deep", *grey(np.uint16, 65535))
    )
    pool = npz.read(folder / "deep.npz")
    assert pool.x_train.dtype == np.uint16  # the first pixel needs more than 8 bits
    assert pool.x_train.max() > 32768
    with np.load(folder / "deep.npz") as file:
        assert file["x_train"].dtype == np.uint16
        assert file["x_range"].tolist() == [0, 65535]
    both = pictures(tmp_path / "both", *grey(np.uint16, 65535))
    Image.new("L", (5, 4), 255).save(both / "cat" / "white.png")
    assert "all are kept as 16 bits" in said(both)
    with np.load(folder / "both.npz") as file:
        assert 65535 in {row.min() for key in ("x_train", "x_test") for row in file[key]}


def test_pixels_of_32_bits_need_a_range_unless_they_are_floats_from_0_to_1(folder, tmp_path, said):
    unit = pictures(tmp_path / "unit", *grey(np.float32, 1), suffix=".tiff", mark=0.1)
    assert "0 is black and 1 white" in said(unit)
    assert npz.read(folder / "unit.npz").x_train.max() > 32768
    wide = pictures(tmp_path / "wide", *grey(np.float32, 1000), suffix=".tiff")
    assert "whose black and white are not known; state them, such as --range" in said(wide, rc=2)
    said(wide, "--range", "0", "1000")
    assert 32768 < npz.read(folder / "wide.npz").x_train.max() <= 65535
    whole = pictures(tmp_path / "whole", *grey(np.int32, 70000), suffix=".tiff")
    assert "int32 pixels from 0" in said(whole, rc=2)


def test_transparency_is_put_before_white(folder, tmp_path, said):
    shape = np.zeros((4, 5, 4), np.uint8)  # black on transparent
    shape[1:3, :, 3] = 255
    root = pictures(tmp_path / "alpha", shape, shape, shape, place=20)  # a visible pixel
    assert "6 of 6 pictures: transparent, put before white" in said(root)
    x = npz.read(folder / "alpha.npz").x_train
    assert x[:, 0, 1:].min() == 255
    assert x[:, 1].max() <= 5


def test_pictures_are_turned_as_exif_says(folder, tmp_path, said):
    exif = Image.Exif()
    exif[0x0112] = 6
    arrays = [np.tile(np.arange(0, 250, 50, np.uint8), (4, 1)) for _ in range(3)]
    for suffix in (".jpg", ".tiff"):
        root = pictures(tmp_path / f"turned{suffix[1:]}", *arrays, suffix=suffix, mark=40, exif=exif)
        assert "6 of 6 pictures: turned, as EXIF says" in said(root)
        x = npz.read(folder / f"turned{suffix[1:]}.npz").x_train
        assert x.shape[1:] == (5, 4, 1)
        assert x[0, -1].mean() > x[0, 1].mean() + 100


def test_of_an_animation_the_first_frame_is_taken(folder, tmp_path, said):
    root = pictures(tmp_path / "moving", *grey(np.uint8, 255))
    frames = [Image.new("L", (5, 4), shade) for shade in (10, 200)]
    frames[0].save(root / "cat" / "a.gif", save_all=True, append_images=frames[1:])
    assert "1 of 7 pictures: of several frames or pages, the first was taken" in said(root)


def test_what_lies_elsewhere_in_the_folder(folder, tmp_path, said):
    root = pictures(tmp_path / "pets", *grey(np.uint8, 255))
    (root / "cat" / "more").mkdir()
    (root / "cat" / "0.png").rename(root / "cat" / "more" / "0.png")
    (root / "Thumbs.db").write_text("x")
    (root / "cat" / "Thumbs.db").write_text("x")
    (root / "stray.png").write_text("x")
    outside = pictures(tmp_path / "elsewhere", *grey(np.uint8, 255))
    (root / "dog" / "link.png").symlink_to(outside / "dog" / "0.png")
    (root / "bird").symlink_to(outside / "cat")
    words = said(root)
    assert "6 + " not in words
    for each in (
        "2 classes, 4 + 2 rows",
        "2 links were not followed",
        "1 files are in no class's folder",
        "1 pictures in folders",
    ):
        assert each in words


def test_twins_of_unicode_are_refused_and_twins_of_case_told(tmp_path, said):
    for form in ("NFC", "NFD"):
        pictures(tmp_path / "twins" / unicodedata.normalize(form, "é"), *grey(np.uint8, 255))
    for form in ("NFC", "NFD"):
        (tmp_path / "twins" / unicodedata.normalize(form, "é") / "cat").rename(tmp_path / form)
    assert "two labels are both written" in said(tmp_path / "twins", rc=2)
    root = pictures(tmp_path / "case", *grey(np.uint8, 255))
    (root / "Cat").mkdir()
    Image.new("L", (5, 4), 7).save(root / "Cat" / "0.png")
    assert "the labels 'Cat' and 'cat' differ in case" in said(root)


def test_formats_that_start_other_programs_are_no_pictures(tmp_path, said):
    root = pictures(tmp_path / "pets", *grey(np.uint8, 255))
    Image.new("RGB", (5, 4)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(root / "cat" / "a.png")
    assert "pictures are PNG, JPEG, GIF, BMP, TIFF, WEBP" in said(root, rc=2)
    (root / "cat" / "a.png").unlink()
    os.mkfifo(root / "cat" / "b.png")
    assert "is not a file, but a pipe" in said(root, rc=2)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (("Train", "Test"), "6 + 6 rows"),
        (("train", "val"), "6 + 6 rows"),
        (("train", "val", "test"), "12 + 6 rows"),
        (("train",), "train is the only part there is"),
    ],
)
def test_parts_of_a_folder(tmp_path, said, parts, words):
    for k, part in enumerate(parts):
        pictures(tmp_path / "pets" / part, *(each + 7 * k for each in grey(np.uint8, 200)))
    assert words in said(tmp_path / "pets")


def test_parts_that_cannot_be(tmp_path, said):
    for part in ("val", "test"):
        pictures(tmp_path / "pets" / part, *grey(np.uint8, 200))
    assert "call one of them train" in said(tmp_path / "pets", rc=2)
    (tmp_path / "pets" / "val").rename(tmp_path / "pets" / "train")
    (tmp_path / "pets" / "cat").mkdir()
    assert "has test and also cat" in said(tmp_path / "pets", rc=2)


# --- the same picture in five formats -------------------------------------------------------------------------------

FORMS = {
    "uint8": lambda x: x,
    "float01": lambda x: (x / 255).astype(np.float32),
    "float255": lambda x: x.astype(np.float32),
    "int64": lambda x: x.astype(np.int64),
    "uint16": lambda x: x.astype(np.uint16) * 257,
}


@pytest.mark.slow
def test_the_same_picture_trains_the_same_in_five_formats(folder):
    import fedlab_lite as fl
    from fedlab_lite.algorithms import FedAvg
    from fedlab_lite.data import synthetic

    pool = synthetic.digits(400, 100)
    accuracy, names = {}, set()
    for name, form in FORMS.items():
        x = {f"x_{part}": form(getattr(pool, f"x_{part}")) for part in ("train", "test")}
        limit = {"float01": 1, "uint16": 65535}.get(name, 255)
        arrays = x | {"y_train": pool.y_train, "y_test": pool.y_test, "x_range": [0, limit]}
        np.savez(folder / f"{name}.npz", **arrays)
        data = federated(name, partition="iid", num_clients=4)
        assert (data.x.dtype, data.x_range) == (np.uint8, None if name == "uint8" else (0, limit))
        names.add(data.fingerprint())
        problem = fl.Problem(data, fl.make_model("mlp", data.input_shape, 10, width=32, depth=1))
        history, _ = fl.train(problem, FedAvg(lr=0.2, batch_size=20), num_rounds=10)
        accuracy[name] = float(history.final().mean())
    assert len(names) == 1
    assert len(set(accuracy.values())) == 1, accuracy
    assert accuracy["uint8"] > 0.5


def test_what_a_file_says_of_its_range(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).integers(0, 65536, (20, 4, 4)).astype(np.uint16)
    good = {"x_train": x, "x_test": x[:10], "y_train": np.arange(20) % 2, "y_test": np.arange(10) % 2}
    np.savez(folder / "deep.npz", **good)
    with pytest.warns(UserWarning, match="networks would see"):
        federated("deep", partition="iid", num_clients=2)
    assert main(["data", "check", "deep"]) == 0
    assert "`fedlab data import FILE --range 0 65535`" in capsys.readouterr().out
    assert main(["data", "import", str(folder / "deep.npz"), "--range", "0", "65535", "--output", "ranged.npz"]) == 0
    for x_range, words in (([0, 255], "beyond its x_range"), ([1, 0], "must rise"), ([1], "save two values")):
        np.savez(folder / "bad.npz", **good, x_range=x_range)
        with pytest.raises(InputError, match=words):
            npz.read(folder / "bad.npz")


def test_check_names_unequal_columns_and_channels_first(capsys, folder):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(30, 3)) * [1, 2, 50000]).astype(np.float32)
    assert "b up to" in ranges.judged([x], ["a", "b", "c"])[0]
    assert "channels first" in ranges.judged([np.zeros((2, 3, 32, 32), np.float32)])[0]
    assert not ranges.judged([(rng.normal(size=(30, 3))).astype(np.float32)])
    pixels = rng.integers(0, 256, (9, 784)).astype(np.float32)
    assert "--range 0 255" in ranges.judged([pixels])[0]
    assert "dark" in ranges.judged([np.ones((2, 4, 4, 1), np.uint8)])[0]


# --- tables ---------------------------------------------------------------------------------------------------------


def frame(n=24, **columns):
    rng = np.random.default_rng(1)
    values = {"a": rng.normal(size=n), "b": rng.normal(size=n), "label": ["no", "yes"] * (n // 2)}
    return pd.DataFrame(values | columns)


def test_columns_that_should_not_be_features(tmp_path, said):
    table = frame(Id=range(100, 124), patient=[1, 2, 3, 4] * 6, leak=[0, 1] * 12)
    table.to_csv(tmp_path / "t.csv")  # with its index
    words = said(tmp_path / "t.csv")
    assert "the first column has no name and numbers the rows (the index of `to_csv`): it was left out" in words
    assert "5 features: a, b, Id, patient, leak" in words
    assert "column 'Id' numbers the rows; leave it out: --drop Id" in words
    assert "column 'patient' seems to say whose a row is" in words
    assert "column 'leak' alone tells the label" in words
    again = said(tmp_path / "t.csv", "--drop", "Id", "leak", "--owner", "patient", "--output", tmp_path / "u.npz")
    assert "2 features: a, b" in again
    assert "warning" not in again


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,label,label\n" + "1,0,0\n2,1,1\n" * 5, "two columns called 'label'"),
        ("a,label\n" + "1,0,9\n2,1,9\n" * 5, "rows have more fields than the line of names"),
        ("a,label\n" + "\n".join(f"{k},{k / 7}" for k in range(50)), "50 values in 50 rows, continuous"),
        ("a,label\n" + "1e300,0\n2,1\n" * 5, "beyond float32"),
        ("a,label\n" + "1,no\n2,\n" * 5, "column 'label' is empty in row 1"),
        ("a,b,label\n" + "1,x,no\n2,y,yes\n" * 5, "--drop b"),
        ("1,2,3\n" + "1,5,0\n2,6,1\n" * 5, "known: 0, 1, 2"),
        (",".join(f"p{k}" for k in range(785)) + "\n" + "1," * 784 + "1\n", "... (785 columns)"),
        ("label\n0\n1\n", "no columns of features"),
    ],
)
def test_tables_that_are_refused(tmp_path, said, content, words):
    (tmp_path / "t.csv").write_text(content)
    assert words in said(tmp_path / "t.csv", rc=2)


@pytest.mark.parametrize(
    ("name", "encoding", "separator", "words"),
    [
        ("t.csv", "utf-8-sig", ",", "2 features: a, b"),
        ("t.CSV", "utf-8", ";", "separated by semicolons"),
        ("t.tsv", "utf-8", "\t", "separated by tabs"),
        ("t.csv", "latin-1", ",", "read as Windows-1252 (Latin-1)"),
        ("t.csv", "utf-16", ",", "read as UTF-16"),
        ("t.csv.gz", "utf-8", ",", "2 features: a, b"),
    ],
)
def test_tables_of_every_usual_form(folder, tmp_path, said, name, encoding, separator, words):
    text = frame(label=["né", "oui"] * 12).to_csv(index=False, sep=separator)
    content = text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert words in said(tmp_path / name)
    assert npz.read(folder / "t.npz").label_words == ("né", "oui")


def test_decimal_commas_no_header_and_words_of_labels(folder, tmp_path, said):
    frame().to_csv(tmp_path / "comma.csv", index=False, sep=";", decimal=",")
    assert "commas in numbers are decimal points" in said(tmp_path / "comma.csv")
    table = frame(label=[3, 7] * 12, kind=["cat", "dog"] * 12)
    table[["a", "b", "label"]].to_csv(tmp_path / "bare.csv", index=False, header=False)
    assert "it has no line of names" in said(tmp_path / "bare.csv", "--label", "2")
    table.to_csv(tmp_path / "words.csv", index=False)
    assert "column 'kind' has a word for each label" in said(tmp_path / "words.csv")
    assert npz.read(folder / "words.npz").label_words == ("cat", "dog")


def test_equal_rows_are_on_one_side(folder, tmp_path, said):
    table = pd.concat([frame()] * 3)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert "48 rows repeat others; equal rows are all in training, or all in test" in said(tmp_path / "t.csv")
    pool = npz.read(folder / "t.npz")
    train, test = ({row.tobytes() for row in x} for x in (pool.x_train, pool.x_test))
    assert test
    assert not train & test
    table["part"] = ["train"] * 60 + ["test"] * 12
    table.to_csv(tmp_path / "u.csv", index=False)
    assert "12 rows are in training and in test" in said(tmp_path / "u.csv", "--split", "part")


def test_standardised_columns(folder, tmp_path, said):
    frame(b=np.arange(24) * 5000.0).to_csv(tmp_path / "t.csv", index=False)
    assert "unequal or large numbers" in said(tmp_path / "t.csv")
    assert "mean 0 and deviation 1" in said(tmp_path / "t.csv", "--standardise", "--output", folder / "s.npz")
    x = npz.read(folder / "s.npz").x_train
    np.testing.assert_allclose([x.mean(0), x.std(0)], [[0, 0], [1, 1]], atol=1e-5)


@pytest.mark.parametrize("name", ["digits", ".hidden", "a.b", "a:b", "cost$_^$x", "x" * 252, "-p"])
def test_names_that_could_not_be_used(tmp_path, said, name):
    frame().to_csv(tmp_path / "t.csv", index=False)
    assert "choose another --output" in said(tmp_path / "t.csv", f"--output={tmp_path / f'{name}.npz'}", rc=2)


def test_a_name_is_made_from_the_source(folder, tmp_path, said):
    frame().to_csv(tmp_path / "my people.v2.csv", index=False)
    assert "-p dataset my_people_v2" in said(tmp_path / "my people.v2.csv")


def test_a_pipe_a_struct_and_too_little_memory(folder, tmp_path, said, monkeypatch):
    os.mkfifo(tmp_path / "pipe.csv")
    assert "is not a file" in said(tmp_path / "pipe.csv", rc=2)
    pytest.importorskip("pyarrow")
    frame(label=[{"k": 1}, {"k": 2}] * 12).to_parquet(tmp_path / "s.parquet")
    assert "values of type dict; a label is a word or a number" in said(tmp_path / "s.parquet", rc=2)
    frame().to_csv(tmp_path / "t.csv", index=False)
    said(tmp_path / "t.csv")
    monkeypatch.setattr(memory, "free_memory", lambda: 300)
    with pytest.raises(InputError, match=r"would take .* GiB of memory, but 0.0 GiB are free"):
        npz.arrays_in(folder / "t.npz")
    assert "GiB are free" in said(pictures(tmp_path / "pets", *grey(np.uint8, 255)), rc=2)


# --- arrays ---------------------------------------------------------------------------------------------------------


def test_arrays_of_other_projects(folder, tmp_path, said):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (30, 3, 8, 8)).astype(np.uint8), np.arange(30)[:, None] % 2
    cut = {"train": slice(20), "val": slice(20, 25), "test": slice(25, 30)}
    medmnist = {
        f"{part}_{kind}": array[rows] for part, rows in cut.items() for kind, array in (("images", x), ("labels", y))
    }
    keras = {f"{kind}_{part}": array[cut[part]] for part in ("train", "val") for kind, array in (("x", x), ("y", y))}
    for name, arrays, words in (
        ("med", medmnist, ["25 + 5 rows", "5 rows for validation join those for training", "channels first"]),
        ("keras", keras, ["20 + 5 rows", "5 rows for validation are for testing"]),
        ("torchvision", {"data": x, "targets": y[:, 0]}, ["24 + 6 rows"]),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        text = said(tmp_path / f"{name}.npz")
        assert not [each for each in words if each not in text], text
        assert npz.read(folder / f"{name}.npz").x_train.shape[1:] == (8, 8, 3)
    np.savez(tmp_path / "odd.npz", foo=x, labels=y)
    assert "it has 'foo', which is not part of a data set" in said(tmp_path / "odd.npz", rc=2)
    np.savez(folder / "raw.npz", **medmnist)
    with pytest.raises(InputError, match="`fedlab data import` reads arrays of other names"):
        npz.read(folder / "raw.npz")


def test_a_name_twice_in_an_archive(folder, tmp_path):
    import zipfile

    np.savez(folder / "t.npz", x_train=np.zeros((4, 2)))
    with zipfile.ZipFile(folder / "t.npz") as archive:
        content = archive.read("x_train.npy")
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(folder / "t.npz", "a") as archive:
        archive.writestr("x_train.npy", content)
    with pytest.raises(InputError, match="it has x_train twice"):
        npz.read(folder / "t.npz")


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.full((20, 2), 10**12), "beyond int32"),
        (np.full((20, 2), 1e300), "beyond float32"),
        (np.zeros((20, 2), np.longdouble), "is float128; convert it"),
    ],
)
def test_numbers_that_would_wrap(x, words):
    with pytest.raises(InputError, match=words):
        federated(x, np.arange(20) % 2, partition="iid", num_clients=2)


def test_other_byte_orders_are_read():
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(">f4")
    data = federated(x, (np.arange(20) % 2).astype(">i2"), partition="iid", num_clients=2)
    assert data.x.dtype.isnative
    plain = federated(x.astype("f4"), np.arange(20) % 2, partition="iid", num_clients=2)
    assert data.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize(("y", "words"), [(10**9, "only 2 of them occur"), (2**40, "must lie in 0")])
def test_ids_of_a_text_that_no_network_has(y, words):
    ids = np.ones((20, 4), int)
    with pytest.raises(InputError, match=words):
        federated(ids, np.where(np.arange(80).reshape(20, 4) % 2, y, 1), task="next_character", owners=[0, 1] * 10)
