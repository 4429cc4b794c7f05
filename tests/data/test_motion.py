"""Embedded motion: shapes, users, determinism, activities, and that they can be learnt, but not from a few windows."""

import numpy as np
import pytest

from fedlab_lite.data import federated, motion
from fedlab_lite.util import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path))
    return tmp_path / "embedded"


def test_windows_are_of_five_activities_and_120_users():
    pool = motion.motion(603, 150)
    assert (pool.x_train.shape, pool.x_test.shape, pool.x_train.dtype) == ((603, 900), (150, 900), np.float32)
    assert sorted(np.bincount(pool.y_train)) == [120, 120, 121, 121, 121]
    assert np.bincount(pool.y_test).tolist() == [30] * 5
    windows = np.bincount(pool.owner_train, minlength=120)
    assert len(windows) == len(np.unique(pool.owner_test)) == 120
    assert windows.min() >= 1
    assert windows.max() > 2 * windows.mean()  # users are of unequal diligence
    assert (pool.name, pool.source, pool.num_classes) == ("motion", "embedded motion", 5)
    assert (pool.y_train.dtype, pool.owner_train.dtype) == (np.int32, np.int32)
    steps = pool.x_train * 512
    assert np.array_equal(steps, np.rint(steps))  # readings have a resolution, so that no processor's rounding shows
    assert 1 < abs(pool.x_train).max() < 50
    few = motion.motion(30, 7)
    assert len(np.unique(few.owner_train)) == 30  # as many users as there can be


def test_activities_differ_as_they_should():
    pool = motion.motion(1000, 5)
    readings = pool.x_train.reshape(-1, 100, 3, 3)  # by sensor and axis
    swing = readings.std(1).mean(2)  # [n, sensors]
    by_activity = np.array([swing[pool.y_train == k].mean(0) for k in range(5)])
    call, hop, typing, walk, wave = by_activity
    assert hop[0] > 1.3 * max(walk[0], wave[0]) > 2 * max(call[0], typing[0])
    assert wave[2] > 1.5 * max(walk[2], hop[2]) > 2 * max(call[2], typing[2])
    gravity = np.linalg.norm(readings[:, :, 0].mean(1), axis=-1)
    assert np.median(gravity) == pytest.approx(1, abs=0.15)
    assert np.median(np.linalg.norm(readings[:, :, 2].mean(1), axis=-1)) == pytest.approx(np.hypot(0.5, 0.8), abs=0.1)


def test_users_hold_their_phones_in_their_own_ways():
    pool = motion.motion(2000, 5, num_users=4)
    up = pool.x_train.reshape(-1, 100, 9)[..., :3].mean(1)
    own = [up[(pool.y_train == 3) & (pool.owner_train == user)] for user in range(4)]  # as they walk
    between, within = np.std([rows.mean(0) for rows in own], axis=0), np.mean([rows.std(0) for rows in own])
    assert between.mean() > 1.2 * within


def test_the_seed_decides_and_the_cache_changes_nothing(cache):
    first, other = motion.motion(40, 20), motion.motion(40, 20, seed=1)
    for part in range(4):
        assert not np.array_equal(first[part], other[part])
    assert len(list(cache.iterdir())) == 2
    for _ in range(2):
        again = motion.motion(40, 20)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        for path in cache.iterdir():
            path.unlink()


def test_bad_input():
    with pytest.raises(InputError, match="motion: users is 0; there must be at least one"):
        motion.motion(10, 10, num_users=0)
    with pytest.raises(InputError, match="motion: test is 0"):
        motion.motion(10, 0)


def test_clients_by_user_or_from_the_pool():
    data = federated("motion", partition="natural", num_clients=6, train_size=90, test_size=30)
    assert (data.size.sum(), data.test_size.sum(), data.input_shape, data.x.dtype) == (90, 30, (900,), np.float32)
    assert data.size.max() > data.size.min()
    pooled = federated("motion", partition="dirichlet_capped", num_clients=8, alpha=0.3, train_size=400, test_size=80)
    assert pooled.size.sum() == 400
    assert pooled.size.min() >= 5
    assert pooled.test_size.min() >= 1
    sizes = {n: federated("motion", partition="iid", num_clients=n, train_size=40, test_size=40).x for n in (2, 4)}
    rows = [{row.tobytes() for row in x.reshape(-1, 900)} for x in sizes.values()]
    assert rows[0] == rows[1]  # how many share the data does not change them


def accuracy(x, y, test_x, test_y, epochs: int) -> float:
    """Of a network 900-64-5 after plain SGD with momentum, in batches of 16."""
    rng = np.random.default_rng(0)
    weights = [
        (rng.standard_normal(shape) * np.sqrt(2 / shape[0])).astype(np.float32) for shape in ((900, 64), (64, 5))
    ]
    speed = [np.zeros_like(w) for w in weights]
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(x)), -(-len(x) // 16)):
            hidden = np.maximum(x[rows] @ weights[0], 0)
            scores = np.exp((logits := hidden @ weights[1]) - logits.max(1, keepdims=True))
            error = (scores / scores.sum(1, keepdims=True) - np.eye(5, dtype=np.float32)[y[rows]]) / len(rows)
            gradients = [x[rows].T @ (error @ weights[1].T * (hidden > 0)), hidden.T @ error]
            for w, v, gradient in zip(weights, speed, gradients, strict=True):
                v *= 0.9
                v += gradient
                w -= 0.01 * v
    answers = (np.maximum(test_x @ weights[0], 0) @ weights[1]).argmax(1)
    return float(np.mean(answers == test_y))


def test_all_together_learn_what_no_client_learns_alone():
    pool = motion.motion(2000, 500)
    assert accuracy(*pool[:4], epochs=10) > 0.85
    alone = [accuracy(pool.x_train[k : k + 20], pool.y_train[k : k + 20], *pool[2:4], epochs=20) for k in (0, 20, 40)]
    assert 0.2 < np.mean(alone) < 0.6
