"""Clients over 8 devices: rows go where they should, and nothing depends on the number of devices, to the bit.

    PYTHONPATH=tests python tests/engine/test_devices.py 8        # what a process with 8 host devices computes, as JSON

Tests compare what two such processes say, of 8 devices and of 1, with each other and with plain NumPy.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.engine import broadcast, combine, put_on_devices, replicated, training
from fedlab_lite.engine import devices as sharding
from fedlab_lite.engine.devices import CHUNK, balanced, placed, put, take

DEVICES = 8
CLIENTS = (16, 11)  # shared out over 8 devices; not divisible, so that everything is everywhere
COHORT = [5, 16, 0, 10, 3]  # 16 is an idle slot with 16 clients, and with 11


def tree(clients):
    """Leaves of all types that clients own."""
    rng = np.random.default_rng(clients)
    return {
        "float": rng.normal(size=(clients, 3)).astype(np.float32),
        "half": rng.normal(size=(clients, 2)).astype(ml_dtypes.bfloat16),
        "pixels": rng.integers(0, 256, (clients, 2, 2)).astype(np.uint8),
        "deep pixels": rng.integers(0, 65536, (clients, 2, 2)).astype(np.uint16),
        "flag": rng.integers(0, 2, clients).astype(bool),
        "number": rng.integers(-9, 9, clients).astype(np.int32),
    }


def new_rows():
    return {name: leaf[: len(COHORT)] for name, leaf in tree(99).items()}


def stacked(clients):
    rng = np.random.default_rng(clients)
    columns = {"narrow": (5,), "scalar": (), "wide": (CHUNK + 7,), "half": (4,)}
    rows = {name: rng.normal(size=(clients, *shape)).astype(np.float32) for name, shape in columns.items()}
    return rows | {"half": rows["half"].astype(ml_dtypes.bfloat16)}


ORDER = np.array([7, 2, 9, 0])
CASES = {  # of `combine`: rows of the matrix, its columns (None: all clients), order, spread
    "mean": (1, None, None, False),
    "some": (2, len(ORDER), ORDER, False),
    "mixed": (None, None, None, True),
}


def matrix(case, clients):
    rows, columns, *_ = CASES[case]
    return np.random.default_rng(1).random((rows or clients, columns or clients)).astype(np.float32)


def histories():
    """Small trainings, of every algorithm: problem, algorithm, clients per round."""
    from helpers import blobs

    def common(name):
        network = {"model": "gaussian_mlp", "latent": 4} if name == "fedcr" else {}
        return blobs(num_clients=16, width=8, depth=1, features=4, **network)

    every = {name: (common(name), make_algorithm(name, lr=0.1), None) for name in ALGORITHMS}

    wide = blobs(num_clients=16, width=260, depth=1, features=260)  # a layer of more than CHUNK numbers
    deq = blobs(num_clients=16, model="deq_mlp", width=8, features=4)
    seen, unseen = blobs(num_clients=19, width=8, depth=1, features=4).data.split(3)  # newcomers are not divisible
    small = replace(blobs(num_clients=16, width=8, depth=1, features=4), data=seen, newcomers=unseen)
    return every | {
        "fedavg": (wide, make_algorithm("fedavg", lr=0.1, epochs=1), 6),
        "fedeq": (deq, make_algorithm("fedeq", lr=0.1, epochs=1, server="argmin"), 6),
        "fedf_admm": (small, make_algorithm("fedf_admm", lr=0.1), None),
    }


# --- what a process computes ------------------------------------------------------------------------------------------


def digest(tree) -> str:
    found = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(tree):
        array = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def as_lists(tree):
    return {name: [str(leaf.dtype), np.asarray(leaf).astype(float).tolist()] for name, leaf in tree.items()}


def per_device(leaves) -> list[float]:
    """What each device holds of these arrays, as a share of all their bytes."""
    held = dict.fromkeys(jax.devices(), 0)
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return [bytes_ / sum(leaf.nbytes for leaf in leaves) for bytes_ in held.values()]


def moved(clients):
    """take, put and broadcast, in a program as a round makes one."""
    on_devices = put_on_devices(tree(clients), placed(clients))
    cohort, rows = jnp.array(COHORT), new_rows()
    one = jax.tree.map(lambda leaf: leaf[0], on_devices)
    after = jax.jit(put)(on_devices, cohort, rows)
    everywhere = jax.jit(lambda tree: broadcast(tree, clients))(one)
    return {
        "take": as_lists(jax.jit(take)(on_devices, cohort)),
        "put": as_lists(after),
        "broadcast": as_lists(everywhere),
        "shares": [max(per_device(jax.tree.leaves(found))) for found in (on_devices, after, everywhere)],
    }


def combined(clients):
    rows, found = put_on_devices(stacked(clients), placed(clients)), {}
    for case, (_, _, order, spread) in CASES.items():
        result = jax.jit(combine, static_argnames="spread")(matrix(case, clients), rows, order=order, spread=spread)
        gaps = {}
        for name, leaf in result.items():
            part = np.asarray(stacked(clients)[name], float)[slice(None) if order is None else order]
            expected = np.tensordot(matrix(case, clients).astype(float), part, 1)
            gaps[name] = np.abs(np.asarray(leaf, float) - expected).max()
        types = {name: str(leaf.dtype) for name, leaf in result.items()}
        found[case] = {"digest": digest(result), "gaps": gaps, "types": types}
    return found


def trained(problem, algorithm, cohort_size):
    plan = training.Plan(2, cohort_size)
    problem = training.place_problem(problem)
    state, (progress,) = training.advance(problem, [(algorithm, 0)], plan)
    owned = [state[name] for name in algorithm.owned if name in state]
    data = (problem.data.x, problem.data.y, problem.data.test_x, problem.data.test_y)
    return {
        "state": digest(state),
        "curves": digest((progress.metrics, progress.client_curves)),
        "finite": progress.finite,
        "shares": {"data": per_device(data), "owned": per_device(jax.tree.leaves(owned)) if owned else []},
    }


def main(devices: int) -> dict:
    jax.config.update("jax_num_cpu_devices", devices)
    assert sharding.mesh().size == devices
    return {
        "moved": {clients: moved(clients) for clients in CLIENTS},
        "combined": {clients: combined(clients) for clients in CLIENTS},
        "trained": {name: trained(*parts) for name, parts in histories().items()},
        "replicated": per_device([put_on_devices(np.zeros(8), replicated())]),
    }


# --- tests ------------------------------------------------------------------------------------------------------------


def computed() -> dict[int, dict]:
    """What processes with 8 devices and with 1 say."""
    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}  # this checkout, then tests/
    commands = {devices: [sys.executable, __file__, str(devices)] for devices in (DEVICES, 1)}
    processes = {
        devices: subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for devices, command in commands.items()
    }
    outputs = {devices: process.communicate()[0] for devices, process in processes.items()}
    assert [process.returncode for process in processes.values()] == [0, 0]
    return {devices: json.loads(output.splitlines()[-1]) for devices, output in outputs.items()}


@pytest.fixture(scope="module")
def found(once):
    return {int(devices): said for devices, said in once("devices", computed).items()}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [DEVICES, 1])
@pytest.mark.parametrize("clients", CLIENTS)
def test_rows_are_copied_as_numpy_copies_them(found, devices, clients):
    """Also where a place of the cohort is idle: zeros are taken, and nothing is put."""
    got, before = found[devices]["moved"][str(clients)], tree(clients)
    real = [(place, client) for place, client in enumerate(COHORT) if client < clients]
    for name, leaf in before.items():
        rows, after = np.zeros((len(COHORT), *leaf.shape[1:])), leaf.astype(float)
        for place, client in real:
            rows[place] = leaf[client]
            after[client] = new_rows()[name][place].astype(float)
        expected = {"take": rows, "put": after, "broadcast": np.stack([leaf[0].astype(float)] * clients)}
        for way, values in expected.items():
            kind, numbers = got[way][name]
            assert kind == str(leaf.dtype)
            np.testing.assert_array_equal(numbers, values)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "share"), [(16, 2 / 16), (11, 1.0)])
def test_each_device_holds_its_clients_rows(found, clients, share):
    assert found[DEVICES]["moved"][str(clients)]["shares"] == pytest.approx([share] * 3)
    assert found[DEVICES]["replicated"] == [1.0] * DEVICES


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("clients", CLIENTS)
def test_sums_over_clients_are_those_of_numpy_and_the_same_bits(found, clients, case):
    eight, one = (found[devices]["combined"][str(clients)][case] for devices in (DEVICES, 1))
    assert eight == one
    assert all(gap < (0.05 if name == "half" else 2e-5) for name, gap in one["gaps"].items())
    assert one["types"] == {"narrow": "float32", "scalar": "float32", "wide": "float32", "half": "bfloat16"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_training_gives_the_same_on_any_number_of_devices(found, name):
    eight, one = (found[devices]["trained"][name] for devices in (DEVICES, 1))
    assert one["finite"]
    assert (eight["state"], eight["curves"]) == (one["state"], one["curves"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedeq", "fedf_admm"])
def test_no_device_holds_more_than_its_share_of_what_clients_own(found, name):
    shares = found[DEVICES]["trained"][name]["shares"]
    assert max(shares["data"]) <= 0.2
    assert max(shares["owned"], default=0) <= 0.2


# --- dealing ----------------------------------------------------------------------------------------------------------


def loads(cohort, sizes, devices):
    """The rows of each device, and the cohort in its order for the devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "mesh", lambda: np.zeros(devices))
        places = np.asarray(balanced(jnp.asarray(cohort), np.asarray(sizes)))
    assert len(places) % devices == 0
    hands = places.reshape(devices, -1)  # devices take equal runs
    return [sum(sizes[client] for client in hand if client < len(sizes)) for hand in hands], places


def test_loads_by_hand():
    assert sorted(loads(range(5), [100, 90, 80, 10, 10], 4)[0], reverse=True) == [100, 90, 80, 20]


def test_on_one_device_the_cohort_stays_as_it_is():
    assert loads([3, 0, 2], [1, 2, 3, 4], 1) == ([8], pytest.approx([3, 0, 2]))


@pytest.mark.slow
@given(st.data())
def test_devices_get_equal_shares(data):
    """Each client of the cohort once; no device's rows exceed another's by more than the largest client's."""
    sizes = data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=17))
    cohort = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    devices = data.draw(st.integers(1, 8))
    rows, places = loads(cohort, sizes, devices)
    assert sorted(places[places < len(sizes)]) == sorted(cohort)
    assert np.all(places[places >= len(sizes)] == len(sizes))  # idle slots
    assert max(rows) - min(rows) <= max(sizes[client] for client in cohort)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
