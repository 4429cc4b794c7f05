"""Anyone's own arrays as data for clients, in one line."""

import numpy as np
import pytest

from fedlab_lite.algorithms import FedAvg
from fedlab_lite.data import federated
from fedlab_lite.engine import Problem, train
from fedlab_lite.nn import make_model
from fedlab_lite.util import InputError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)), np.arange(40) % 4
X[:, 0] = np.arange(40)  # a row's number
OWNERS = np.repeat(["zoe", "Ada", "Bob"], [5, 15, 20])


def numbers(data, part=""):
    """The numbers of each client's rows, in their order."""
    x, size = (getattr(data, f"{part}{name}") for name in ("x", "size"))
    return [np.asarray(rows[:n, 0]).astype(int).tolist() for rows, n in zip(x, size, strict=True)]


@pytest.mark.parametrize("owners", [OWNERS, OWNERS.tolist(), np.repeat([7, 3, 5], [5, 15, 20])])
def test_each_owner_is_a_client(owners):
    data = federated(X, Y, owners=owners, name="mine", seed=1)
    names = np.unique(owners)
    assert data.num_clients == 3
    for client, (rows, test) in enumerate(zip(numbers(data), numbers(data, "test_"), strict=True)):
        assert sorted(rows + test) == np.flatnonzero(np.asarray(owners) == names[client]).tolist()
        assert (rows, test) == (sorted(rows), sorted(test))
        np.testing.assert_array_equal(data.y[client, : len(rows)], Y[rows])
        np.testing.assert_array_equal(data.test_y[client, : len(test)], Y[test])
    assert sorted(data.test_size.tolist()) == [1, 3, 4]
    assert (data.name, data.num_classes, data.task) == ("mine", 4, "classification")


def test_the_seed_draws_the_test_rows():
    data = [federated(X, Y, owners=OWNERS, seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert data[0] == data[1] != data[2]
    half = federated(X, Y, owners=OWNERS, test_fraction=0.5)
    assert half.test_size.tolist() == [8, 10, 2]
    assert federated(X, Y, owners=OWNERS, test_fraction=0.99).size.tolist() == [1, 1, 1]


@pytest.mark.parametrize("partition", ["iid", "by_label", "dirichlet", "dirichlet_capped", "by_class_cycle"])
def test_a_pool_is_divided_as_a_data_set_is(partition):
    x, y = np.tile(X, (10, 1)), np.tile(Y, 10)
    data = federated(x, y, partition=partition, num_clients=4, alpha=5.0)
    assert data.num_clients == 4
    assert np.sum(data.size) + np.sum(data.test_size) == len(y)
    if partition == "iid":
        assert np.sum(data.test_size) == 80
        assert (
            np.bincount(np.concatenate([y[:n] for y, n in zip(data.test_y, data.test_size, strict=True)])).min() == 20
        )
    assert federated(x, y, partition=partition, num_clients=4, alpha=5.0).fingerprint() == data.fingerprint()


def test_sizes_common_and_shared_rows_of_a_pool():
    options = {"partition": "iid", "num_clients": 2, "train_size": 20, "common_test": True, "shared_size": 4}
    data = federated(X, Y, **options)
    assert (data.size.tolist(), data.test_size.tolist(), len(data.shared_x)) == ([10, 10], [8], 4)


def test_they_train():
    data = federated(X, Y, owners=OWNERS)
    problem = Problem(data, make_model("mlp", data.input_shape, data.num_classes, width=4, depth=1))
    history, _ = train(problem, FedAvg(lr=0.01, batch_size=4), num_rounds=1)
    assert np.isfinite(history.metrics["loss"]).all()


def with_nan():
    x = X.copy()
    x[7, 1] = np.nan
    return x


OWN, IID = {"owners": OWNERS}, {"partition": "iid", "num_clients": 2}


@pytest.mark.parametrize(
    ("x", "y", "options", "words"),
    [
        (X, Y[:-1], OWN, r"x has shape \(40, 3\) and y \(39,\); both need one row per sample"),
        (X, Y, {"owners": OWNERS[1:]}, r"owners has shape \(39,\), but there are 40 rows"),
        (X, Y, {"owners": np.append(OWNERS[1:], "Eve")}, "owner Eve has one row"),
        (X, Y, {"owners": np.where(Y > 0, 1.0, np.nan)}, "owners is float64; use integers or strings for owners"),
        (with_nan(), Y, OWN, "row 7 of x holds NaN or infinity"),
        (with_nan(), Y, IID, "row 7 of x holds NaN or infinity"),
        (X, X[:, :1], OWN, "y is float64, but labels are whole numbers; number the classes"),
        (X, Y.astype(float), IID, "y is float64, but labels are whole numbers; number the classes"),
        (X, Y.astype(str), IID, "y is <U"),
        (X, Y + 1, OWN, "the labels y are 1, 2, 3, 4, and no row has 0; number the classes 0, 1"),
        (X, Y * 2, IID, "the labels y are 0, 2, 4, 6, and no row has 1"),
        (X, Y - 1, OWN, "y runs from -1 to 2, but must lie in 0"),
        (X, Y, OWN | {"num_classes": 3}, r"y runs from 0 to 3, but must lie in 0 \.\.\. 2"),
        (X, np.stack([Y, Y], 1), OWN, "a classification needs one label per row"),
        (X[:, 0], Y, OWN, r"x has shape \(40,\)"),
        (X.astype(str), Y, OWN, "x is <U.*convert it"),
        (X[:0], Y[:0], OWN, "x and y have no rows"),
        (X, None, OWN, "y is missing"),
        (X, Y, {}, "set partition .* or pass owners, one per row"),
        (X, Y, {"partition": "iid"}, "set partition .*and num_clients"),
        (X, Y, OWN | IID, "owners decide which client has which row; leave partition and num_clients out"),
        (X, Y, OWN | {"test_fraction": 1.0}, "test_fraction must be .* got 1.0"),
        (X, Y, IID | {"test_fraction": 0.0}, "test_fraction must be .* got 0.0"),
        (X, Y, IID | {"partition": "natural"}, "own arrays does not record the owners of its samples"),
        (X, Y, OWN | {"task": "clustering"}, "unknown task 'clustering'"),
        ("digits", Y, IID, "data set 'digits' has its own labels"),
        ("digits", None, {"partition": "iid"}, "set partition .*and num_clients$"),
    ],
)
def test_what_cannot_be(x, y, options, words):
    with pytest.raises(InputError, match=words):
        federated(x, y, **options)


def test_a_class_without_rows():
    assert federated(X, Y * 2, num_classes=7, **OWN).num_classes == 7
