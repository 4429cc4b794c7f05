"""Federated: stacking, padding, checks, fingerprint; and `federated(...)`, from a name to stacked clients."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite.data import EMBEDDED, PARTITIONS, Federated, federated
from fedlab_lite.data.which import DATASETS
from fedlab_lite.util import InputError, MissingDataError


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def folders(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_CACHE", str(cache))
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path


def clients(*sizes: int, dtype=np.uint8):
    return [(np.full((n, 2, 2, 1), k + 1, dtype), np.arange(n) % 3) for k, n in enumerate(sizes)]


def stack(train, test=None, **options) -> Federated:
    return Federated.stack(
        train, test or clients(1, 1), **{"name": "toy", "source": "toys", "num_classes": 3} | options
    )


def test_stack_pads_ragged_clients_with_zeros():
    data = stack(clients(2, 4), clients(3, 1))
    assert data.x.shape == (2, 4, 2, 2, 1)
    assert data.x[:, :, 0, 0, 0].tolist() == [[1, 1, 0, 0], [2, 2, 2, 2]]
    assert data.y.tolist() == [[0, 1, 0, 0], [0, 1, 2, 0]]
    assert data.size.tolist() == [2, 4]
    assert data.test_y.tolist() == [[0, 1, 2], [0, 0, 0]]
    assert data.test_size.tolist() == [3, 1]
    assert data.shared_x.shape == (0, 2, 2, 1)
    assert (data.x.dtype, data.y.dtype, data.size.dtype) == (np.uint8, np.int32, np.int32)
    assert (data.num_clients, data.input_shape) == (2, (2, 2, 1))


def test_64_bits_become_32_and_sequences_of_labels_are_kept():
    words = [(np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3))] * 2
    data = stack(words, words, num_classes=6, task="next_character")
    assert data.x.dtype == np.int32
    assert data.y.shape == (2, 2, 3)
    assert data.summary()["classes_per_client"] == 5.0  # id 0 pads text; it is no class
    assert stack(words, words, num_classes=6).summary()["classes_per_client"] == 6.0  # the task says so, not the shape
    assert stack(clients(1, 1, dtype=np.float64), clients(1, 1, dtype=np.float64)).x.dtype == np.float32


def test_the_task_is_static_and_classification_unless_told():
    data = stack(clients(2, 4))
    assert data.task == "classification"
    told = stack(clients(2, 4), task="next_character")
    assert jax.tree.structure(told) != jax.tree.structure(data)
    assert jax.jit(lambda d: jnp.float32(d.task == "next_character"))(told) == 1
    with pytest.raises(InputError, match="unknown task 'clasification'; did you mean 'classification'"):
        stack(clients(2, 4), task="clasification")


def test_it_is_a_pytree_whose_names_are_static():
    data = stack(clients(2, 4), shared_x=np.ones((5, 2, 2, 1), np.uint8))
    leaves, structure = jax.tree.flatten(data)
    assert [leaf.shape[0] for leaf in leaves] == [2, 2, 2, 2, 2, 2, 5]
    assert jax.tree.unflatten(structure, leaves).source == "toys"
    total = jax.jit(lambda d: d.size.sum() * d.num_classes)(data)
    assert int(total) == 18
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"


def test_fingerprint_follows_the_contents():
    data = stack(clients(2, 4))
    assert data.fingerprint() == stack(clients(2, 4)).fingerprint()
    assert data.fingerprint() == jax.tree.map(jnp.asarray, data).fingerprint()
    assert data.fingerprint() == dataclasses.replace(data, task="next_character").fingerprint()
    assert data.fingerprint() == "2bb6613be61580b75e430bc809a72f9d073cae58d074f110de23e3ad1e856a75"  # names stored runs
    others = [
        stack(clients(3, 4)),
        stack(clients(2, 4), num_classes=4),
        stack(clients(2, 4), shared_x=np.ones((1, 2, 2, 1), np.uint8)),
    ]
    pixel = stack(clients(2, 4))
    pixel.test_x[1, 0, 1, 1, 0] += 1
    assert len({d.fingerprint() for d in [data, pixel, *others]}) == 5


def named(data: Federated) -> list[list[int]]:
    """The clients of `clients(...)` by the number in their pixels, training and test."""
    return [part[:, 0, 0, 0, 0].tolist() for part in (data.x, data.test_x)]


@given(st.integers(2, 40), st.data())
def test_newcomers_are_drawn_and_no_client_is_lost(num_clients, draw):
    unseen, seed = draw.draw(st.integers(1, num_clients - 1)), draw.draw(st.integers(0, 99))
    sizes = [1 + k % 3 for k in range(num_clients)]
    data = stack(clients(*sizes), clients(*sizes), shared_x=np.ones((5, 2, 2, 1), np.uint8))
    data = dataclasses.replace(data, budget=np.arange(num_clients, dtype=np.int32))
    seen, newcomers = data.split(unseen, seed)
    assert newcomers.num_clients == unseen
    for part in (seen, newcomers):
        train, test = named(part)
        assert train == test == sorted(train)
        assert part.size.tolist() == part.test_size.tolist() == [sizes[k - 1] for k in train]
        assert part.budget.tolist() == [k - 1 for k in train]
        assert len(part.shared_x) == 5
    assert sorted(named(seen)[0] + named(newcomers)[0]) == list(range(1, num_clients + 1))
    assert named(data.split(unseen, seed)[1]) == named(newcomers)


def test_every_client_is_a_newcomer_by_some_seed():
    data = stack(clients(*[1] * 10), clients(*[1] * 10))
    times = np.bincount([k for seed in range(400) for k in named(data.split(3, seed)[1])[0]], minlength=11)[1:]
    assert times.sum() == 1200
    assert np.all(abs(times - 120) < 40)  # four standard deviations
    drawn = 1 + np.sort(np.random.default_rng([0, 3]).choice(10, 3, replace=False))
    assert named(data.split(3)[1])[0] == named(data.split(3, seed=0)[1])[0] == drawn.tolist() != [8, 9, 10]


def test_a_common_test_set_is_of_both_parts():
    data = stack(clients(1, 2, 3), clients(4), common_test=True)
    assert [part.test_y.tolist() for part in data.split(1)] == [[[0, 1, 2, 0]]] * 2


@pytest.mark.parametrize("unseen", [0, 2, -1])
def test_impossible_splits(unseen):
    with pytest.raises(InputError, match=f"{unseen} unseen clients of 2: choose at least 1, and leave 1"):
        stack(clients(1, 1)).split(unseen)


def numbered(sizes: list[int], *, common_test: bool = False) -> Federated:
    """Clients whose training rows are numbered through, in x from 1 on and in y from 0: none looks like padding."""
    ends = np.cumsum(sizes)
    train = [
        (np.arange(end - n, end)[:, None] + 1, np.arange(end - n, end)) for n, end in zip(sizes, ends, strict=True)
    ]
    options = {"num_classes": int(ends[-1]), "shared_x": np.ones((5, 1), int), "common_test": common_test}
    data = stack(train, train[:1] if common_test else train, **options)
    return dataclasses.replace(data, budget=np.arange(len(sizes), dtype=np.int32))


def rows_of(x, y, size) -> list[list[int]]:
    """The numbers of each client's rows, after a look at the types, the padding, and that x and y belong together."""
    assert (x.dtype, y.dtype, size.dtype) == (np.int32,) * 3
    assert x.shape == (*y.shape, 1) == (len(size), size.max(), 1)
    counts = np.arange(y.shape[1]) < size[:, None]
    np.testing.assert_array_equal(x[..., 0], np.where(counts, y + 1, 0))
    assert not y[~counts].any()
    return [row[:n].tolist() for row, n in zip(y, size, strict=True)]


@given(
    sizes=st.lists(st.integers(2, 30), min_size=1, max_size=12),
    share=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 99),
    common=st.booleans(),
)
def test_rows_held_out_and_rows_left_are_a_partition(sizes, share, seed, common):
    common = common and len(sizes) > 1
    data = numbered(sizes, common_test=common)
    before = data.fingerprint()
    rest, tuning = data.hold_out(share, seed)
    owned, kept = rows_of(data.x, data.y, data.size), rows_of(rest.x, rest.y, rest.size)
    assert kept == rows_of(tuning.x, tuning.y, tuning.size)
    held = rows_of(tuning.test_x, tuning.test_y, tuning.test_size)
    assert tuning.common_test == rest.common_test == common
    if common:
        assert len(held) == 1
        held = [[row for row in held[0] if row in own] for own in owned]
        assert tuning.test_size.tolist() == [sum(map(len, held))]
    assert [sorted(a + b) for a, b in zip(kept, held, strict=True)] == owned
    assert all(part == sorted(part) for part in kept + held)
    assert [len(rows) for rows in held] == [max(1, int(share * n)) for n in sizes]
    assert min(map(len, kept)) >= 1
    for name in ("test_x", "test_y", "test_size"):  # no test row is used to tune
        np.testing.assert_array_equal(getattr(rest, name), getattr(data, name))
    for part in (rest, tuning):
        assert (part.name, part.source, part.num_classes, part.task) == ("toy", "toys", sum(sizes), data.task)
        assert part.budget.tolist() == list(range(len(sizes)))
        assert part.shared_x.shape == (5, 1)
    assert data.fingerprint() == before
    again = data.hold_out(share, seed)
    assert [part.fingerprint() for part in again] == [rest.fingerprint(), tuning.fingerprint()]


def test_what_is_held_out_depends_on_the_seed_and_on_the_client_alone():
    data = numbered([20, 20, 20])
    held = [
        rows_of(*(getattr(data.hold_out(0.5, seed)[1], f"test_{k}") for k in ("x", "y", "size"))) for seed in (0, 1)
    ]
    for client in range(3):
        drawn = np.random.default_rng([0, 4, client]).choice(20, 10, replace=False)
        assert held[0][client] == (20 * client + np.sort(drawn)).tolist() != held[1][client]
    assert len({tuple(np.array(rows) % 20) for seed in held for rows in seed}) == 6
    fewer = numbered([20, 9, 20]).hold_out(0.5)[1]
    assert fewer.test_y[0].tolist() == held[0][0]
    assert (fewer.test_y[2] - 29).tolist() == (np.array(held[0][2]) - 40).tolist()


def test_holding_out_keeps_types_and_takes_arrays_of_jax():
    pairs = [(np.full((n, 2, 2, 1), 7, np.uint8), np.full((n, 3), 1)) for n in (4, 2)]
    data = stack(pairs, pairs)
    for each in (data, jax.tree.map(jnp.asarray, data)):
        rest, tuning = each.hold_out(0.5)
        assert rest.x.shape == (2, 2, 2, 2, 1)
        for x, y in ((rest.x, rest.y), (tuning.test_x, tuning.test_y)):
            assert (x.dtype, y.dtype) == (np.uint8, np.int32)
            assert y.tolist() == [[[1] * 3] * 2, [[1] * 3, [0] * 3]]


def test_a_client_of_one_row_cannot_hold_one_out():
    with pytest.raises(
        InputError, match=r"toy: client 1 has too few training rows \(1\) .* so that each client has two"
    ):
        stack(clients(3, 1)).hold_out(0.5)


@pytest.mark.parametrize("share", [0, 1, -0.5, 2, float("nan")])
def test_impossible_shares(share):
    with pytest.raises(InputError, match=f"the share to hold out is {share}; choose one between 0 and 1"):
        stack(clients(2, 4)).hold_out(share)


def test_summary():
    assert stack(clients(2, 4)).summary() == {
        "name": "toy",
        "source": "toys",
        "clients": 2,
        "train": 6,
        "test": 2,
        "mean": 3.0,
        "std": 1.0,
        "padding": 0.2,
        "classes": 3,
        "classes_per_client": 2.5,
    }
    common = stack(clients(2, 4), clients(4), common_test=True)
    assert common.summary()["padding"] == round(2 / 12, 3)  # one test set, kept once


X, Y = np.zeros((2, 4), np.float32), np.array([0, 1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((X[:0], Y[:0]), "training data of client 1 are empty; use fewer clients"),
        ((X, Y[:1]), r"client 1: x has shape \(2, 4\) and y \(1,\)"),
        ((X[:, :3], Y), r"client 1: a row of x is float32 \(3,\), client 0.s is float32 \(4,\)"),
        ((X, np.eye(2, dtype=int)), r"client 1: a row of y is \(2,\), client 0.s is \(\)"),
        ((X.astype(np.uint8), Y), r"client 1: a row of x is uint8 \(4,\), client 0.s is float32"),
        ((X + np.array([[0], [np.nan]], np.float32), Y), "client 1: row 1 of x holds NaN or infinity"),
        ((X + np.float32(np.inf), Y), "client 1: row 0 of x holds NaN or infinity"),
        ((X, Y + 2), r"client 1: y runs from 2 to 3, but must lie in 0 \.\.\. 2"),
        ((X, Y - 1), "client 1: y runs from -1"),
        ((X, Y * 1.0), "client 1: y is float64, but labels are whole numbers; number the classes"),
    ],
)
def test_bad_clients(bad, message):
    good = (X, Y)
    with pytest.raises(InputError, match=message):
        stack([good, bad], [good, good])
    with pytest.raises(InputError, match=message.replace("training", "test")):
        stack([good, good], [good, bad])


def test_other_bad_input():
    with pytest.raises(InputError, match="2 clients have training data and 1 have test data"):
        stack(clients(1, 1), clients(1))
    with pytest.raises(InputError, match="2 clients have training data and 2 have test data"):
        stack(clients(1, 1), clients(1, 1), common_test=True)
    assert stack(clients(1, 1), clients(3), common_test=True).test_size.tolist() == [3]
    with pytest.raises(InputError, match="0 clients"):
        stack([], [])
    with pytest.raises(InputError, match="shared_x is float32"):
        stack(clients(1, 1), shared_x=np.zeros((1, 2, 2, 1), np.float32))
    with pytest.raises(InputError, match="x is <U1; convert it"):
        stack([(np.array([["a"]]), Y[:1])], [(np.array([["a"]]), Y[:1])])


def test_glyphs_by_writer():
    data = federated("glyphs", partition="natural", num_clients=5)
    assert data.input_shape == (28, 28, 1)
    assert data.summary()["mean"] == pytest.approx(194, abs=1)
    assert data.num_classes == 62
    assert (data.source, data.task) == ("embedded glyphs", "classification")
    part = federated("glyphs", partition="natural", num_clients=5, train_size=200, test_size=5)
    assert int(part.size.sum()) == 200
    assert part.test_size.tolist() == [1] * 5
    expected = 1 + (data.size - 1) * 195 / (data.size.sum() - 5)
    assert np.all(abs(part.size - expected) < 1)
    whole = federated("glyphs", partition="natural", num_clients=5, train_size=int(data.size.sum()))
    assert whole.fingerprint() == data.fingerprint()
    other = federated("glyphs", partition="natural", num_clients=5, seed=1)
    assert other.fingerprint() != data.fingerprint()


def test_textures_by_label():
    data = federated("textures", partition="by_label", num_clients=5, train_size=500, test_size=100)
    assert data.x.shape == (5, 100, 32, 32, 3)
    assert data.test_size.tolist() == [20] * 5
    assert data.summary()["classes_per_client"] == 2.0
    assert federated("textures", partition="iid", num_clients=2).size.tolist() == [500, 500]
    assert federated("textures", partition="iid", num_clients=2).test_size.tolist() == [100, 100]


@pytest.mark.parametrize("partition", ["iid", "by_label", "dirichlet", "dirichlet_capped"])
def test_real_data_are_subsampled_by_class(folders, partition):
    y = np.repeat(np.arange(10), [30] * 5 + [10] * 5)
    x = np.broadcast_to(np.arange(200, dtype=np.uint8)[:, None, None, None], (200, 2, 2, 3))
    np.savez(folders / "data" / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = federated("cifar10", partition=partition, num_clients=5, alpha=50.0, train_size=100, test_size=40)
    assert int(data.size.sum()) == 100
    assert int(data.test_size.sum()) == 40
    kept = np.concatenate([data.y[i, :n] for i, n in enumerate(data.size)])
    assert np.bincount(kept).tolist() == [15] * 5 + [5] * 5
    pixels = np.concatenate([data.x[i, :n, 0, 0, 0] for i, n in enumerate(data.size)])
    assert len(set(pixels.tolist())) == 100  # no sample twice
    assert np.array_equal(y[pixels], kept)
    assert data.source.startswith("own file cifar10.npz, sha256 ")
    both = "cifar10: train_size is 201 and test_size 300, but there are 200 training and 200 test rows; "
    with pytest.raises(InputError, match=f"{both}write train_size=200, test_size=200, or less"):
        federated("cifar10", partition=partition, num_clients=5, train_size=201, test_size=300)
    with pytest.raises(InputError, match=r"test_size None, .*190 training .* write train_size=190, test_size=200"):
        federated("cifar10", partition=partition, num_clients=5, train_size=191, shared_size=10)
    with pytest.raises(InputError, match="shared_size is 201, but there are 200 training rows"):
        federated("cifar10", partition=partition, num_clients=5, shared_size=201)


def test_a_cycle_of_classes_pools_training_and_test_samples(folders):
    """60 training and 40 test rows, 10 of each class together: five clients more than classes would not share alike."""
    y = np.arange(100) % 10
    x = np.broadcast_to(np.arange(100, dtype=np.uint8)[:, None, None, None], (100, 2, 2, 3))
    np.savez(folders / "data" / "cifar10.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    options = {"partition": "by_class_cycle", "num_clients": 10, "classes_per_client": 2}
    data = federated("cifar10", **options)
    assert data.size.tolist() == [7] * 10
    assert data.test_size.tolist() == [3] * 10
    pixels = np.concatenate([data.x[..., 0, 0, 0].ravel(), data.test_x[..., 0, 0, 0].ravel()])
    assert sorted(pixels) == list(range(100))
    np.testing.assert_array_equal(data.y, y[data.x[..., 0, 0, 0]])
    np.testing.assert_array_equal(data.test_y, y[data.test_x[..., 0, 0, 0]])
    assert set(np.unique(data.y[9])) | set(np.unique(data.test_y[9])) == {9, 0}
    for sizes, want in (
        ({"train_size": 40}, (4, 2)),
        ({"test_size": 20}, (5, 2)),
        ({"train_size": 50, "test_size": 50}, (5, 5)),
    ):
        part = federated("cifar10", **options, **sizes)
        assert (part.x.shape[1], part.test_x.shape[1]) == want
    for wrong, message in (
        ({"train_size": 45}, "train_size is 45, .* gives 10 clients equally many; use a multiple"),
        ({"train_size": 80}, "can have at most 10 samples each, not 8 for training and 3"),
        ({"shared_size": 10}, "allows no common_test and no shared_size; leave them out"),
        ({"common_test": True}, "allows no common_test"),
        ({"classes_per_client": 11}, "classes_per_client is 11 of 10 classes"),
        ({"num_clients": 60}, "training and 1 test rows per client are too few"),
    ):
        with pytest.raises(InputError, match=message):
            federated("cifar10", **options | wrong)


def test_embedded_data_are_made_to_the_order_of_a_cycle():
    data = federated("digits", partition="by_class_cycle", num_clients=20, classes_per_client=4, train_size=800)
    assert (data.size.tolist(), data.test_size.tolist()) == ([40] * 20, [17] * 20)
    assert data.summary()["classes_per_client"] == 4.0
    other = federated(
        "digits", partition="by_class_cycle", num_clients=20, classes_per_client=4, train_size=800, seed=1
    )
    assert other.fingerprint() != data.fingerprint()


def test_the_source_says_which_rows_were_given_away():
    options = {"partition": "dirichlet_capped", "num_clients": 30, "train_size": 160, "test_size": 40}
    data = federated("motion", **options, alpha=0.1)  # 5 of 160 rows for each, at the least
    assert min(data.size) == 5
    assert re.fullmatch(r"embedded motion, rows given to clients short of them: \d+", data.source)
    assert federated("motion", **options | {"train_size": 900}, alpha=50.0).source == "embedded motion"


def test_owners_in_an_npz_allow_natural(folders):
    x, owner = np.zeros((6, 2, 2, 1), np.uint8), np.array(["b", "a", "b", "c", "c", "c"])
    arrays = {"x_train": x, "y_train": np.arange(6), "owner_train": owner}
    arrays |= {key.replace("train", "test"): value for key, value in arrays.items()}
    np.savez(folders / "data" / "femnist.npz", **arrays)
    data = federated("femnist", partition="natural", num_clients=3)
    assert [data.y[i, :n].tolist() for i, n in enumerate(data.size)] == [[1], [0, 2], [3, 4, 5]]
    with pytest.raises(InputError, match="only 3 writers or roles"):
        federated("femnist", partition="natural", num_clients=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "glyfs"}, "unknown data set 'glyfs'; did you mean 'glyphs'"),
        ({"partition": "bylabel"}, "unknown partition 'bylabel'; did you mean 'by_label'"),
        ({"num_clients": 0}, "num_clients must be .*at least 1, got 0"),
        ({"train_size": 4}, "train_size is 4, which leaves some of 5 clients without rows"),
        ({"test_size": 0}, "test_size must be .*at least 1, got 0"),
        ({"train_size": 100_000}, "glyphs, 5 clients: train_size is 100000 and test_size None, but"),
        ({"dataset": "textures", "train_size": 10}, "'natural' is not possible. Use partition 'dirichlet'"),
        ({"partition": "by_label", "classes_per_client": 63}, "classes_per_client is 63 of 62"),
        ({"partition": "dirichlet", "alpha": 0}, "alpha must be .*above 0, got 0"),
    ],
)
def test_bad_requests(options, message):
    with pytest.raises(InputError, match=message):
        federated(**{"dataset": "glyphs", "partition": "natural", "num_clients": 5} | options)


def test_names_and_missing_real_data():
    assert set(EMBEDDED) < set(DATASETS)
    assert len(PARTITIONS) == 6
    with pytest.raises(MissingDataError, match="data fetch cifar100"):
        federated("cifar100", partition="iid", num_clients=5)
