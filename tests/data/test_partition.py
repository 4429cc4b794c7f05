"""Partitions: exact counts, every sample once, the same label mix in train and test, clear errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.data import by_label, dirichlet, dirichlet_capped, iid
from fedlab_lite.data.partition import apportion, by_class_cycle, natural
from fedlab_lite.data.partition_deprl import _drawn, _give
from fedlab_lite.util import InputError


def labels(num_classes: int, each: int) -> np.ndarray:
    return np.random.default_rng(1).permutation(np.repeat(np.arange(num_classes), each))


def assert_used_once(parts, total: int) -> None:
    assert np.sort(np.concatenate(parts)).tolist() == list(range(total))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.integers(0, 500))
def test_apportion_sums_exactly_and_stays_within_one(weights, total):
    counts = apportion(np.array(weights), total)
    exact = np.array(weights) / sum(weights) * total
    assert counts.sum() == total
    assert np.all(abs(counts - exact) < 1 + 1e-6)


def test_iid_sizes_differ_by_at_most_one_and_every_sample_is_used_once():
    train, test = iid(labels(3, 34), labels(3, 10), 7, seed=0)
    assert sorted(len(i) for i in train) == [14, 14, 14, 15, 15, 15, 15]
    assert sorted(len(i) for i in test) == [4, 4, 4, 4, 4, 5, 5]
    assert_used_once(train, 102)
    assert_used_once(test, 30)


@pytest.mark.parametrize("p", [2, 5])
def test_by_label_on_the_sizes_of_cifar10(p):
    """Table I: 100 clients, 500 training and 100 test samples each, exactly p classes, the same in both."""
    y_train, y_test = labels(10, 5000), labels(10, 1000)
    train, test = by_label(y_train, y_test, 100, p, seed=3)
    assert {len(i) for i in train} == {500}
    assert {len(i) for i in test} == {100}
    assert_used_once(train, 50_000)
    assert_used_once(test, 10_000)
    for a, b in zip(train, test, strict=True):
        held, counts = np.unique(y_train[a], return_counts=True)
        held_in_test, test_counts = np.unique(y_test[b], return_counts=True)
        assert held.tolist() == held_in_test.tolist()
        assert counts.tolist() == [500 // p] * p
        assert test_counts.tolist() == [100 // p] * p


@settings(max_examples=60)
@given(st.data())
def test_by_label_gives_distinct_classes_and_even_holders(data):
    num_classes = data.draw(st.integers(1, 12))
    p = data.draw(st.integers(1, num_classes))
    num_clients = data.draw(st.integers(-(-num_classes // p), 25))
    y = labels(num_classes, 30)
    train, test = by_label(y, y, num_clients, p, seed=data.draw(st.integers(0, 9)))
    held = [np.unique(y[i]) for i in train]
    assert all(len(classes) == p for classes in held)
    assert all(np.array_equal(a, np.unique(y[b])) for a, b in zip(held, test, strict=True))
    assert_used_once(train, len(y))
    holders = np.bincount(np.concatenate(held), minlength=num_classes)
    assert set(holders) <= {num_clients * p // num_classes, -(-num_clients * p // num_classes)}
    for label in range(num_classes):
        shares = [np.sum(y[i] == label) for i in train if label in y[i]]
        assert max(shares) - min(shares) <= 1


def test_by_label_draws_other_pairs_for_other_seeds():
    y = labels(10, 40)
    pairs = {tuple(tuple(np.unique(y[i])) for i in by_label(y, y, 20, 2, seed=seed)[0]) for seed in range(5)}
    assert len(pairs) == 5


@pytest.mark.parametrize(
    ("each", "k", "train_rows", "test_rows"), [(7000, 4, 980, 420), (6000, 2, 840, 360)], ids=["fmnist", "cifar10"]
)
def test_by_class_cycle_on_the_sizes_of_fedreco(each, k, train_rows, test_rows):
    """50 clients: 980 and 420 rows of 4 classes of Fashion-MNIST, 840 and 360 of 2 of CIFAR-10; all rows are used."""
    y = labels(10, each)
    train, test = by_class_cycle(y, 50, k, seed=3)
    assert {len(i) for i in train} == {train_rows}
    assert {len(i) for i in test} == {test_rows}
    assert_used_once([*train, *test], 10 * each)
    for client, (a, b) in enumerate(zip(train, test, strict=True)):
        counts = np.bincount(y[np.concatenate([a, b])], minlength=10)
        held = [(client + j) % 10 for j in range(k)]
        assert counts[held].tolist() == [(train_rows + test_rows) // k] * k
        assert set(y[a]) == set(y[b]) == set(held)  # drawn at random, but no class is missed at this size


@settings(max_examples=60)
@given(st.data())
def test_by_class_cycle_gives_equal_sizes_of_a_cycle_of_classes(data):
    num_classes = data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, num_classes))
    num_clients = data.draw(st.integers(num_classes - k + 1, 25))
    sizes = data.draw(st.lists(st.integers(80, 110), min_size=num_classes, max_size=num_classes))
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(num_classes), sizes))
    seed = data.draw(st.integers(0, 9))
    train, test = by_class_cycle(y, num_clients, k, seed=seed)
    assert len({len(i) for i in train}) == len({len(i) for i in test}) == 1
    total = len(train[0]) + len(test[0])
    assert len(train[0]) == total * 7 // 10
    used = np.concatenate([*train, *test])
    assert len(np.unique(used)) == len(used)  # no row belongs to two clients
    shares = [np.bincount(y[np.concatenate(rows)], minlength=num_classes) for rows in zip(train, test, strict=True)]
    for client, counts in enumerate(shares):
        held = [(client + j) % num_classes for j in range(k)]
        assert counts[held].tolist() == [total // k + (j < total % k) for j in range(k)]
        assert counts.sum() == total
    with pytest.raises(InputError, match="can have"):  # no larger size fits
        by_class_cycle(y, num_clients, k, seed=seed, rows=(total, 1))
    if num_clients % num_classes == 0 and len(set(sizes)) == 1:
        assert len(y) - len(used) < num_clients  # what equal sizes leave over
    fewer = by_class_cycle(y, num_clients, k, seed=seed, rows=(max(k - 1, 1), 1))
    assert [len(i) for part in fewer for i in part] == [max(k - 1, 1)] * num_clients + [1] * num_clients


@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_dirichlet_uses_every_sample_once_and_keeps_the_label_mix(alpha):
    y_train, y_test = labels(10, 500), labels(10, 100)
    train, test = dirichlet(y_train, y_test, 20, alpha, seed=0)
    assert_used_once(train, 5000)
    assert_used_once(test, 1000)
    assert min(len(i) for i in train) >= 10
    assert min(len(i) for i in test) >= 1
    for a, b in zip(train, test, strict=True):
        expected = np.bincount(y_train[a], minlength=10) / 5
        assert np.all(abs(np.bincount(y_test[b], minlength=10) - expected) < 1.2)  # both rounded once


def test_dirichlet_grows_more_even_with_alpha():
    y = labels(10, 500)

    def skew(alpha):
        parts = dirichlet(y, y, 20, alpha, seed=0)[0]
        return np.mean([np.bincount(y[i], minlength=10).max() / len(i) for i in parts])

    assert skew(0.1) > 0.4 > skew(1.0) > skew(1000.0)
    assert skew(1000.0) == pytest.approx(0.1, abs=0.02)


def counts_of(parts, y: np.ndarray) -> np.ndarray:
    """`[classes, clients]`."""
    return np.array([np.bincount(y[rows], minlength=y.max() + 1) for rows in parts]).T


def assert_no_full_client_gets_more(counts: np.ndarray) -> None:
    before = np.cumsum(counts, 0) - counts
    assert not counts[before >= counts.sum() / counts.shape[1]].any()


@settings(max_examples=60)
@given(st.data())
def test_dirichlet_capped_gives_full_clients_no_more_and_everyone_enough(data):
    num_clients = data.draw(st.integers(1, 12))
    num_classes = data.draw(st.integers(1, 6))
    sizes = [data.draw(st.lists(st.integers(12, 99), min_size=num_classes, max_size=num_classes)) for _ in range(2)]
    y_train, y_test = (np.random.default_rng(1).permutation(np.repeat(np.arange(num_classes), n)) for n in sizes)
    alpha, seed = data.draw(st.sampled_from([0.1, 0.5, 100.0])), data.draw(st.integers(0, 9))
    train, test, given = dirichlet_capped(y_train, y_test, num_clients, alpha, seed=seed, max_draws=20)
    assert_used_once(train, len(y_train))
    assert_used_once(test, len(y_test))
    assert min(map(len, train)) >= num_classes
    assert min(map(len, test)) >= 1
    assert_no_full_client_gets_more(counts_of(train, y_train))
    assert 0 <= given <= num_clients * num_classes


@pytest.mark.parametrize(("num_classes", "each"), [(10, 6000), (100, 500)], ids=["fmnist", "cifar100"])
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_dirichlet_capped_on_the_sizes_of_deprl(num_classes, each, alpha):
    """128 workers: no row is moved, and each has as many rows as classes or more, with one label mix in both parts."""
    y_train, y_test = labels(num_classes, each), labels(num_classes, each // 5)
    train, test, given = dirichlet_capped(y_train, y_test, 128, alpha, seed=0)
    assert given == 0
    sizes = np.array([len(rows) for rows in train])
    assert sizes.min() >= num_classes
    assert sizes.max() > 1.1 * sizes.mean()
    assert min(map(len, test)) > 1  # so no test row was moved
    trained, tested = counts_of(train, y_train), counts_of(test, y_test)
    assert_no_full_client_gets_more(trained)
    assert np.all(abs(tested - trained / 5) < 1.2)  # both rounded once


def test_dirichlet_capped_helps_out_where_no_draw_gives_everyone_enough():
    """HARBox's sizes at alpha 0.1: every draw leaves some of 128 workers with fewer than 5 of 27,000 rows."""
    y_train, y_test = labels(5, 5400), labels(5, 1360)
    train, test, given = dirichlet_capped(y_train, y_test, 128, 0.1, seed=0, max_draws=300)
    assert 0 < given < 60
    sizes = np.array([len(rows) for rows in train])
    assert sizes.min() == 5
    assert given <= 5 * np.sum(sizes == 5)
    assert_used_once(train, 27_000)
    assert_used_once(test, 6800)
    assert_no_full_client_gets_more(counts_of(train, y_train))
    for a, b in zip(train, test, strict=True):
        if len(b) == 1:  # perhaps given, of the class that it has most of
            counts = np.bincount(y_train[a], minlength=5)
            assert counts[y_test[b[0]]] == counts.max()


def test_of_all_draws_the_one_that_lacks_least_is_taken():
    """Rows that a draw lacks: what each worker has below one per class. Twelve draws, none of which lacks nothing."""
    y, rng = labels(5, 100), np.random.default_rng(3)
    lacking = [sum(max(5 - n, 0) for n in _drawn(np.full(5, 100), 40, 0.1, rng)[1].sum(0)) for _ in range(12)]
    given = [dirichlet_capped(y, y, 40, 0.1, seed=3, max_draws=n)[2] for n in range(1, 13)]
    assert given == np.minimum.accumulate(lacking).tolist()
    assert given[0] > given[-1] > 0


class GivenShares:
    """A generator whose Dirichlet draws are these shares, one row per class."""

    def __init__(self, shares):
        self.shares = shares

    def dirichlet(self, alpha, size):
        return np.array(self.shares)


def test_a_client_is_full_with_its_part_of_all_samples_not_of_those_so_far():
    """Three clients share three classes of 10: one is full with 10. After the first class none is, with 5, 5 and 0."""
    shares = [[0.5, 0.5, 0.0], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3]]
    left, counts = _drawn(np.array([10, 10, 10]), 3, 1.0, GivenShares(shares))
    assert counts.tolist() == [[5, 5, 0], [5, 3, 2], [0, 5, 5]]
    np.testing.assert_allclose(left[2], [0, 0.5, 0.5])


def test_who_lacks_rows_gets_them_of_its_own_class_from_whoever_has_most():
    wanted = np.array([[4, 0.1, 1], [2, 0.3, 0]])
    for least, expected in ((1, [[4, 0, 1], [1, 1, 0]]), (2, [[3, 0, 2], [0, 2, 0]])):
        counts = np.array([[4, 0, 1], [2, 0, 0]])
        _give(counts, wanted, least)
        assert counts.tolist() == expected
    counts = np.array([[4, 0], [1, 0]])  # one of the class that it wants is not enough
    _give(counts, np.array([[0, 0], [1, 1]]), 2)
    assert counts.tolist() == [[3, 1], [0, 1]]


def test_natural_follows_the_writers():
    owner_train = np.array([5, 3, 5, 9, 3, 7])
    owner_test = np.array([9, 5, 3, 3])
    train, test = natural(owner_train, owner_test, 3, seed=0)  # writer 7 has no test sample
    assert [i.tolist() for i in train] == [[1, 4], [0, 2], [3]]
    assert [i.tolist() for i in test] == [[2, 3], [1], [0]]
    chosen = {tuple(natural(owner_train, owner_test, 1, seed=seed)[0][0]) for seed in range(20)}
    assert chosen == {(1, 4), (0, 2), (3,)}
    named = np.array(["b", "a", "b"])
    assert [i.tolist() for i in natural(named, named, 2, seed=0)[0]] == [[1], [0, 2]]


Y, MANY = labels(4, 10), labels(40, 10)
CALLS = {
    "iid": lambda n, seed: iid(Y, Y, n, seed=seed),
    "by_class_cycle": lambda n, seed: by_class_cycle(Y, n, 2, seed=seed),
    "by_label": lambda n, seed: by_label(Y, Y, n, 2, seed=seed),
    "dirichlet": lambda n, seed: dirichlet(Y, Y, n, 5.0, seed=seed, min_size=1),
    "dirichlet_capped": lambda n, seed: dirichlet_capped(Y, Y, n, 5.0, seed=seed)[:2],
    "natural": lambda n, seed: natural(Y, Y, n, seed=seed),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_seeds_decide(call):
    def flat(seed):
        return [i.tolist() for part in call(3, seed) for i in part]

    assert flat(1) == flat(1)
    assert any(flat(1) != flat(seed) for seed in range(2, 6))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_clients(call):
    with pytest.raises(InputError, match="num_clients must be of type int, at least 1, got 0"):
        call(0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(Y, Y, 41, seed=0), "41 clients cannot share 40 training samples"),
        (lambda: iid(Y, Y[:5], 6, seed=0), "6 clients cannot share 5 test samples"),
        (lambda: by_label(Y, Y, 5, 5, seed=0), "classes_per_client is 5 of 4 classes; choose 1 to 4"),
        (lambda: by_label(Y, Y, 5, 0, seed=0), "classes_per_client must be of type int, at least 1, got 0"),
        (lambda: by_label(Y, Y, 1, 3, seed=0), "hold 3 of 4 classes .* at least 2 clients"),
        (lambda: by_label(Y, Y, 60, 2, seed=0), "class 0 has 10 training samples for 30 clients with that class"),
        (
            lambda: by_class_cycle(Y, 5, 5, seed=0),
            "classes_per_client is 5 of 4 classes; choose 1 to 4",
        ),
        (lambda: by_class_cycle(Y, 5, 0, seed=0), "classes_per_client must be of type int, at least 1, got 0"),
        (lambda: by_class_cycle(Y, 2, 2, seed=0), "2 clients .* hold 3 of 4 classes .* or at least 3 clients"),
        (lambda: by_class_cycle(Y, 40, 2, seed=0), "0 training and 1 test rows per client are too few"),
        (lambda: by_class_cycle(Y, 40, 1, seed=0), "0 training and 1 test rows .* use fewer clients or more"),
        (lambda: by_class_cycle(Y, 60, 2, seed=0), "0 training and 0 test rows per client are too few"),
        (
            lambda: by_class_cycle(Y, 4, 2, seed=0, rows=(8, 3)),
            "can have at most 10 samples each, not 8 .* and 3 for testing",
        ),
        (lambda: dirichlet(Y, Y, 5, 0.0, seed=0), "alpha must be of type float, above 0, got 0.0"),
        (lambda: dirichlet(Y, Y, 5, -1.0, seed=0), "alpha must be of type float, above 0, got -1.0"),
        (lambda: dirichlet(Y, Y, 5, float("nan"), seed=0), "alpha must be of type float, above 0, got nan"),
        (lambda: dirichlet(Y, Y, 30, 0.1, seed=0), "in 100 draws .* use a larger alpha, fewer clients"),
        (lambda: dirichlet_capped(Y, Y, 5, -1.0, seed=0), "alpha must be of type float, above 0, got -1.0"),
        (
            lambda: dirichlet_capped(Y, Y, 11, 1.0, seed=0),
            "needs 4 training samples for each of 11 clients, .* there are 40; use",
        ),
        (
            lambda: dirichlet_capped(Y, Y[:4], 5, 1.0, seed=0),
            "needs 1 test samples for each of 5 clients, .* there are 4",
        ),
        (lambda: dirichlet_capped(MANY, MANY, 10, 1e-9, seed=0, max_draws=9), "in 9 draws .* increase alpha"),
        (lambda: natural(Y, Y, 5, seed=0), "only 4 writers or roles can train and test"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
