"""Embedded data `motion`, in place of HARBox: nine sensor axes of a phone, for five activities and many users.

An activity is a rhythm, with overtones, along each axis, and an orientation of the phone. Windows start at random
points of the rhythm, and users differ in nearly all of these properties. So the difference between activities must be
learnt from many users.
"""

from collections.abc import Callable

import numpy as np

from fedlab_lite.data.formats import ACTIVITIES, Arrays
from fedlab_lite.data.pool import Pool
from fedlab_lite.data.synthetic import VERSION, cached

NUM_USERS = 120
_TIME = np.arange(100) / 50  # seconds, of a window's readings
_STEP = 1 / 512  # resolution of a reading, as of a sensor; rounding gives equal values on all processors
_CHUNK = 256  # windows made at a time

# One row per activity of `ACTIVITIES`.
_RHYTHM = np.array([0.5, 2.1, 0.9, 1.8, 1.7])  # beats per second
# Swings of accelerometer (g), gyroscope (200 degrees/s) and magnetometer (the Earth's field).
_SWING = np.array([[0.05, 0.05, 0.03], [0.7, 0.25, 0.1], [0.04, 0.05, 0.02], [0.35, 0.3, 0.1], [0.4, 0.5, 0.3]])
# Shares of the tone and of two overtones.
_TONES = np.array([[1, 0.3, 0.1], [1, 0.7, 0.5], [1, 0.6, 0.4], [1, 0.6, 0.2], [1, 0.2, 0.1]])
# The direction of up: x, y, z.
_UP = np.array([[0.4, 0.8, 0.2], [0.0, 0.9, 0.3], [0.0, 0.3, 0.9], [-0.2, 0.9, 0.2], [0.2, 0.7, 0.6]])
_TAPS = np.array([0.0, 0.0, 0.25, 0.0, 0.0])  # strength of finger taps (g)


def motion(train_size: int, test_size: int, *, num_users: int = NUM_USERS, seed: int = 0) -> Pool:
    """Windows of two seconds, float32 `[n, 900]`: 100 readings of accelerometer, gyroscope and magnetometer.

    A reading has three axes x, y, z. Every activity occurs equally often (to within one). `owner_train` and
    `owner_test` number the users. Each user has a pace, a vigour, a gait, a grip and a posture, and a phone with a bias
    and noise. Users differ in their number of windows; each has at least one where there are enough. Activities do not
    depend on `seed`; users and windows do. Raises `InputError` for fewer than one user or window.
    """
    counts = {"users": num_users, "train": train_size, "test": test_size, "seed": seed}
    return cached("motion", _motion, len(ACTIVITIES), 4 * 900 * (train_size + test_size), **counts)


def _motion(num_users: int, train_size: int, test_size: int, seed: int) -> Arrays:
    rng = np.random.default_rng([VERSION, 900, seed])
    diligence = rng.dirichlet(np.full(num_users, 3.0))
    record = _phones(num_users, rng)
    arrays = {}
    for part, size in (("train", train_size), ("test", test_size)):
        others = rng.choice(num_users, size, p=diligence)
        owner = rng.permutation(np.concatenate([np.arange(num_users), others])[:size])
        y = rng.permutation(np.arange(size) % len(ACTIVITIES))
        x = np.empty((size, 900), np.float32)
        for start in range(0, size, _CHUNK):
            rows = slice(start, start + _CHUNK)
            x[rows] = record(owner[rows], y[rows])
        arrays |= {f"x_{part}": x, f"y_{part}": y.astype(np.int32), f"owner_{part}": owner.astype(np.int32)}
    return arrays


def _phones(num_users: int, rng: np.random.Generator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Draw the users and return `record(owner [n], y [n])`, which makes their windows `[n, 900]`."""

    def normal(deviation: float, *shape: int) -> np.ndarray:
        return deviation * rng.standard_normal(shape)

    kinds = len(ACTIVITIES)
    common = np.random.default_rng([VERSION, 900]).standard_normal((2, kinds, 1, 3, 9))  # of sines, of cosines
    gait = common + normal(0.6, 2, kinds, num_users, 3, 9)
    pace, vigour = np.exp(normal(0.12, num_users)), np.exp(normal(0.25, num_users, kinds))
    posture, grip = _UP[:, None] + normal(0.3, kinds, num_users, 3), _rotations(normal(0.3, num_users, 3))
    bias, noise = normal(0.05, num_users, 9), 0.04 * np.exp(normal(0.4, num_users))

    def record(owner: np.ndarray, y: np.ndarray) -> np.ndarray:
        n = len(y)
        beats = _RHYTHM[y] * pace[owner] * np.exp(normal(0.06, n))
        turns = beats[:, None] * _TIME + rng.random((n, 1))
        angle = 2 * np.pi * turns[..., None] * np.arange(1, 4)  # [n, 100, 3]
        size = (vigour[owner, y] * np.exp(normal(0.15, n)))[:, None, None]
        size = size * _TONES[y][:, :, None] * np.repeat(_SWING[y], 3, axis=1)[:, None]  # [n, 3, 9]
        x = np.sin(angle) @ (size * gait[0, y, owner]) + np.cos(angle) @ (size * gait[1, y, owner])
        up = posture[y, owner] + normal(0.15, n, 3)
        x[..., :3] += (up / np.linalg.norm(up, axis=1, keepdims=True))[:, None]
        north = 2 * np.pi * rng.random(n)
        x[..., 6:] += np.stack([0.5 * np.cos(north), 0.5 * np.sin(north), np.full(n, -0.8)], 1)[:, None]
        x[..., 2] += _TAPS[y][:, None] * (rng.random((n, 100)) < 0.08) * normal(1, n, 100)
        x = (x.reshape(n, 100, 3, 3) @ grip[owner][:, None]).reshape(n, 100, 9)
        x += bias[owner][:, None] + noise[owner][:, None, None] * normal(1, n, 100, 9)
        return (np.rint(x / _STEP) * _STEP).reshape(n, 900)

    return record


def _rotations(angles: np.ndarray) -> np.ndarray:
    """Rotation matrices `[n, 3, 3]`: about the x, then the y, then the z axis, by `angles [n, 3]`."""
    result = np.broadcast_to(np.eye(3), (len(angles), 3, 3))
    for axis in range(3):
        a, b = (axis + 1) % 3, (axis + 2) % 3
        turn = np.tile(np.eye(3), (len(angles), 1, 1))
        turn[:, a, a] = turn[:, b, b] = np.cos(angles[:, axis])
        turn[:, a, b] = np.sin(angles[:, axis])
        turn[:, b, a] = -turn[:, a, b]
        result = result @ turn
    return result
