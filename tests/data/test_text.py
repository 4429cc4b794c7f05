"""Next-character data: ids, windows, TFF's Shakespeare, one's own, and that `roles` can be learnt and told apart."""

import hashlib
import tarfile
from dataclasses import replace

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite.data import EMBEDDED, Federated, commands, federated, sources, text
from fedlab_lite.data.roles import roles
from fedlab_lite.data.which import DATASETS
from fedlab_lite.engine import Problem, bigram_answer
from fedlab_lite.nn import make_model
from fedlab_lite.util import CorruptFileError, InputError, MissingDataError


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def folder(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_CACHE", str(cache))
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path))
    return tmp_path


SHOWN = np.array(["", "", "", *text.CHARACTERS, "\N{REPLACEMENT CHARACTER}"])


def decode(ids) -> str:
    """The text of ids, without padding, beginning and end."""
    return "".join(SHOWN[np.asarray(ids, int).reshape(-1)])


# --- ids and windows ------------------------------------------------------------------------------------------------


def test_the_vocabulary_is_that_of_fedjax():
    assert (len(text.CHARACTERS), len(set(text.CHARACTERS)), text.NUM_IDS) == (86, 86, 90)
    assert (text.PAD, text.BOS, text.EOS, text.OOV) == (0, 1, 2, 89)
    assert text.encode(text.CHARACTERS).tolist() == list(range(3, 89))
    assert text.encode("{é\N{GRINNING FACE}\x00").tolist() == [89] * 4
    assert text.encode("").dtype == np.int32


@given(st.text(st.sampled_from(text.CHARACTERS)))
def test_encode_then_decode(line):
    ids = text.encode(line)
    assert len(ids) == len(line)
    assert decode(ids) == line
    assert decode(text.windows(text.join([line]))[0]) == line


@given(st.text())
def test_any_text_can_be_encoded(line):
    shown = "".join(c if c in text.CHARACTERS else "\N{REPLACEMENT CHARACTER}" for c in line)
    assert decode(text.encode(line)) == shown


def test_windows_by_hand():
    snippets = ["dhl", "p"]  # ids: 1 3 4 5 2 1 6 2
    x, y = text.windows(text.join(snippets), 4)
    assert x.tolist() == [[1, 3, 4, 5], [2, 1, 6, 0]]
    assert y.tolist() == [[3, 4, 5, 2], [1, 6, 2, 0]]
    assert x.dtype == y.dtype == np.int32
    x, y = text.windows(text.join(["d" * 15]))  # fits exactly: BOS and 15 characters, 15 characters and EOS
    assert x.tolist() == [[1] + [3] * 15]
    assert y.tolist() == [[3] * 15 + [2]]
    assert [part.shape for part in text.windows(text.join([]))] == [(0, 16), (0, 16)]


@given(st.lists(st.text(st.sampled_from(text.CHARACTERS), max_size=30), max_size=5), st.integers(1, 20))
def test_windows_lose_nothing(snippets, length):
    ids = text.join(snippets)
    x, y = text.windows(ids, length)
    assert len(x) == -(-max(len(ids) - 1, 0) // length)
    assert x[x > 0].tolist() == ids[:-1].tolist()
    assert y[y > 0].tolist() == ids[1:].tolist()
    assert np.array_equal(x == 0, y == 0)


# --- shakespeare ----------------------------------------------------------------------------------------------------

LONG = "To be, or not to be: that is the question.\n" * 40  # 1720 characters: 108 windows
SPEECHES = {
    "train": {"HAMLET": [LONG, "Words{"], "GHOST": ["Swear."], "OPHELIA": [LONG[:1599]], "YORICK": [LONG], "A": [LONG]},
    "test": {"HAMLET": ["The rest is sil\xe9nce."], "GHOST": ["Mark me."], "OPHELIA": ["O!"], "A": ["Ay, ay, ay, ay."]},
}


def write_shakespeare(folder, speeches=SPEECHES) -> None:
    for part, roles_of in speeches.items():
        with h5py.File(folder / f"shakespeare_{part}.h5", "w") as file:
            for role, snippets in roles_of.items():
                stored = [snippet.encode("latin-1") for snippet in snippets]
                file.create_dataset(f"examples/{role}/snippets", data=stored, dtype=h5py.string_dtype("ascii"))


def assert_shakespeare(pool) -> None:
    assert pool.owner_train.tolist() == [0] * 108 + [1] * 109
    assert pool.owner_test.tolist() == [0] + [1] * 2  # "A" and "HAMLET"; the others say too little, or nothing in test
    assert pool.x_train.dtype == pool.y_test.dtype == np.int32
    assert decode(pool.x_train[108:]) == LONG + "Words\N{REPLACEMENT CHARACTER}"
    assert np.array_equal(pool.y_train[:, :-1][pool.x_train[:, 1:] > 0], pool.x_train[:, 1:][pool.x_train[:, 1:] > 0])
    assert (pool.name, pool.num_classes, pool.task) == ("shakespeare", 90, "next_character")


def test_shakespeare_unpacked(folder):
    write_shakespeare(folder)
    pool = sources.load("shakespeare")
    assert_shakespeare(pool)
    assert pool.source.startswith("shakespeare (unpacked, sha256 ")
    assert pool.source.endswith(", characters out of vocabulary: 2)")
    assert [row.state for row in commands.status() if row.name == "shakespeare"] == ["ready"]


def test_shakespeare_archive(folder, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("shop")
    write_shakespeare(elsewhere)
    path = folder / "shakespeare.tar.bz2"
    with tarfile.open(path, "w:bz2") as archive:
        for part in SPEECHES:
            archive.add(elsewhere / f"shakespeare_{part}.h5", f"shakespeare_{part}.h5")
    with pytest.raises(CorruptFileError, match=r"shakespeare\.tar\.bz2 is truncated or altered.*expected 0285be99"):
        sources.load("shakespeare")
    known = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    monkeypatch.setitem(sources.SOURCES, "shakespeare", replace(sources.SOURCES["shakespeare"], files=known))
    pool = sources.load("shakespeare")
    assert_shakespeare(pool)
    assert pool.source == "shakespeare (official, characters out of vocabulary: 2)"


def test_more_than_100_windows_are_asked_for(folder):
    """1600 characters between BOS and EOS are 1601 steps, so 101 windows; 1599 make 100."""
    for length, windows in ((1600, 101), (1599, None)):
        write_shakespeare(folder, {"train": {"A": [LONG[:length]]}, "test": {"A": ["Ay."]}})
        if windows:
            assert len(sources.load("shakespeare").x_train) == windows
        else:
            with pytest.raises(InputError, match=r"none of 1 roles has more than 100 training windows .* use texts"):
                sources.load("shakespeare")


def test_damaged_and_missing_shakespeare(folder):
    with pytest.raises(
        MissingDataError, match=r"fetch shakespeare.*\n.*shakespeare\.tar\.bz2.*\n.*shakespeare_train\.h5"
    ):
        sources.load("shakespeare")
    write_shakespeare(folder)
    with h5py.File(folder / "shakespeare_test.h5", "w") as file:
        file["examples/A/snippets"] = np.ones(3)
    with pytest.raises(CorruptFileError, match="cannot be read"):
        sources.load("shakespeare")
    with h5py.File(folder / "shakespeare_test.h5", "w") as file:
        file["other"] = 1
    with pytest.raises(CorruptFileError, match=r"cannot be read.*examples"):
        sources.load("shakespeare")
    path = folder / "shakespeare_train.h5"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(CorruptFileError, match="may be truncated"):
        sources.load("shakespeare")


# --- roles ----------------------------------------------------------------------------------------------------------


def test_roles_have_the_sizes_of_table_1():
    pool = roles(60)
    train, test = np.bincount(pool.owner_train), np.bincount(pool.owner_test)
    assert len(train) == len(test) == 60
    assert train.min() > 100
    assert train.mean() == pytest.approx(465, abs=5)
    assert train.std() == pytest.approx(506, abs=10)
    assert test.sum() / train.sum() == pytest.approx(0.127, abs=0.003)
    assert pool.x_train.shape[1:] == pool.y_test.shape[1:] == (16,)
    assert pool.x_train.dtype == pool.y_test.dtype == np.int32
    assert (pool.source, pool.num_classes, pool.task) == ("embedded roles", 90, "next_character")
    assert not (pool.x_train == text.OOV).any()
    for x, y, owner in ((pool.x_train, pool.y_train, pool.owner_train), (pool.x_test, pool.y_test, pool.owner_test)):
        assert np.array_equal(x == 0, y == 0)
        last = np.flatnonzero(np.diff(owner, append=-1))  # only a role's last window is padded
        assert set(np.flatnonzero((x == 0).any(1))) <= set(last)
        assert all(y[row][y[row] > 0][-1] == text.EOS for row in last)


@pytest.mark.parametrize("num_roles", [1, 2, 3])
def test_any_number_of_roles(num_roles):
    pool = roles(num_roles)
    assert set(pool.owner_train) == set(pool.owner_test) == set(range(num_roles))


def test_no_roles():
    with pytest.raises(InputError, match="roles: roles is 0"):
        roles(0)


def test_the_seed_decides_and_the_cache_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path))
    first, other = roles(2), roles(2, seed=1)
    assert decode(first.x_train[:20]) != decode(other.x_train[:20])
    paths = list((tmp_path / "embedded").iterdir())
    assert len(paths) == 2
    for again in (roles(2), [path.unlink() for path in paths] and roles(2)):
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_natural_clients_of_roles():
    data = federated("roles", partition="natural", num_clients=6)
    assert data.input_shape == (16,)
    assert (data.num_classes, data.task) == (90, "next_character")
    assert data.y.shape == data.x.shape
    assert data.size.tolist() == np.bincount(roles(6).owner_train).tolist()
    few = federated("roles", partition="natural", num_clients=6, train_size=120, test_size=6)
    assert int(few.size.sum()) == 120
    assert few.test_size.tolist() == [1] * 6
    assert few.fingerprint() != data.fingerprint()
    assert (
        few.fingerprint()
        == federated("roles", partition="natural", num_clients=6, train_size=120, test_size=6).fingerprint()
    )
    used = [len(np.unique(y[:n][y[:n] > 0])) for y, n in zip(data.y, data.size, strict=True)]
    assert data.summary()["classes_per_client"] == round(np.mean(used), 1)


@pytest.mark.parametrize("partition", ["iid", "by_label", "dirichlet"])
def test_sequences_are_divided_by_role(partition):
    with pytest.raises(
        InputError, match=f"roles are sequences, split by role: partition must be 'natural', not '{partition}'"
    ):
        federated("roles", partition=partition, num_clients=6, train_size=60)


def test_names():
    assert "roles" in EMBEDDED
    assert "shakespeare" in DATASETS


def counts(x, y) -> np.ndarray:
    """How often each id follows each pair of ids: `[90, 90, 90]`."""
    table = np.zeros((90, 90, 90), np.float32)
    np.add.at(table, (x[:, :-1], x[:, 1:], y[:, 1:]), y[:, 1:] > 0)
    return table


def smoothed(table, prior) -> np.ndarray:
    return (table + 2 * prior) / (table.sum(-1, keepdims=True) + 2)


def test_roles_gain_by_learning_together_and_by_adapting():
    """Surprise (nats a character) of trigrams: of one role's own text, of all roles', and of all roles' adapted."""
    pool = roles(20)
    everyone = counts(pool.x_train, pool.y_train)
    pairs = smoothed(everyone.sum(0), np.full(90, 1 / 90))
    central = smoothed(everyone, pairs)
    surprise = {"central": [], "alone": [], "adapted": []}
    for role in range(20):
        mine, test = pool.owner_train == role, pool.owner_test == role
        own = counts(pool.x_train[mine], pool.y_train[mine])
        models = {
            "central": central,
            "alone": smoothed(own, smoothed(own.sum(0), np.full(90, 1 / 90))),
            "adapted": (own + 30 * central) / (own.sum(-1, keepdims=True) + 30),
        }
        x, y = pool.x_test[test], pool.y_test[test]
        for name, model in models.items():
            chance = model[x[:, :-1], x[:, 1:], y[:, 1:]][y[:, 1:] > 0]
            surprise[name].append(-np.log(chance).mean())
    alone, central, adapted = (np.mean(surprise[name]) for name in ("alone", "central", "adapted"))
    assert central < alone - 0.05
    assert adapted < central - 0.05
    assert adapted > 1.5


def problem_of(data: Federated) -> Problem:
    return Problem(data, make_model("transformer4", data.input_shape, data.num_classes))


def test_a_bigram_model_by_hand():
    """1 is followed by 2 (twice), 2 by 3 (three times) rather than by 1 (twice), 3 by 2; padding by nothing."""
    train = [([[1, 2, 1, 2]], [[2, 1, 2, 1]]), ([[2, 3, 2, 0], [2, 0, 0, 0]], [[3, 2, 3, 0], [3, 0, 0, 0]])]
    test = [([[1, 2, 0, 0]], [[2, 1, 0, 0]]), ([[3, 2, 1, 0]], [[2, 3, 3, 0]])]  # right: 1 of 2, 2 of 3
    train, test = ([(np.array(x), np.array(y)) for x, y in rows] for rows in (train, test))
    data = Federated.stack(train, test, name="toy", source="toys", num_classes=4, task="next_character")
    assert bigram_answer(problem_of(data)) == pytest.approx((1 / 2 + 2 / 3) / 2)
    with pytest.raises(
        InputError, match="a bigram model predicts the next character of a text, but toy is for classification"
    ):
        bigram_answer(problem_of(replace(data, task="classification")))
