"""Saved models: they answer as they were judged, inputs are checked, and what cannot be trusted is refused."""

import io
import json
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import KEY, Quadratic, blobs, quadratic_problem, run_rounds

import fedlab_lite as fl
from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.engine import evaluate, load, save, saved
from fedlab_lite.engine.saved import ABOUT, PARAMS
from fedlab_lite.nn import Model
from fedlab_lite.util import CorruptFileError, InputError, OutputError

NAMES, WORDS = ("Ada", "Bob", "Cyd"), ("red", "green", "blue")


def problem_of(**changes):
    problem = blobs(num_clients=3)
    return replace(problem, data=replace(problem.data, client_names=NAMES, label_words=WORDS), **changes)


def trained(name, problem, rounds=1):
    """The algorithm, and its state as `train` gives it for one seed."""
    algorithm = make_algorithm(name, lr=0.1)
    state = run_rounds(algorithm, problem, rounds, range(problem.num_clients))
    return algorithm, jax.tree.map(lambda leaf: leaf[None], state)


@pytest.fixture(scope="module")
def fedper():
    problem = problem_of()
    return problem, *trained("fedper", problem)


@pytest.fixture
def folder(tmp_path, fedper):
    return save(tmp_path / "mine", *fedper)


def rows_of(problem, client):
    """A client's test rows."""
    return problem.data.test_x[client, : problem.data.test_size[client]]


def test_new_rows_are_scaled_as_the_training_rows_were(tmp_path):
    """Rows in the file's numbers go through `scaled`; without it they are refused, never answered wrongly."""
    problem = problem_of()
    features = problem.data.x.shape[-1]
    mean, step = np.arange(features) * 1000.0, np.full(features, 500.0)
    ranged = replace(problem, data=replace(problem.data, x_range=(tuple(mean), tuple(mean + step))))
    saved = load(save(tmp_path / "ranged", ranged, *trained("fedavg", problem)))
    seen = np.asarray(rows_of(problem, 0))
    raw = seen * step + mean
    np.testing.assert_allclose(saved.scaled(raw), seen, atol=1e-3)
    np.testing.assert_allclose(saved.probabilities(saved.scaled(raw)), saved.probabilities(seen), atol=1e-3)
    with pytest.raises(InputError, match=r"pass saved.scaled\(x\)"):
        saved.predict(raw)
    with pytest.raises(InputError, match="a row has shape"):
        saved.scaled(raw[:, 1:])


def test_a_training_that_diverged_is_not_saved(tmp_path, fedper):
    problem, algorithm, state = fedper
    broken = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf * jnp.nan]), state)
    with pytest.raises(InputError, match=r"the training of seed 1 diverged: .*NaN or infinity; train again with a sm"):
        save(tmp_path / "mine", problem, algorithm, broken, seed=1)
    assert save(tmp_path / "mine", problem, algorithm, broken).exists()


def test_a_saved_model_is_replaced_only_where_asked(folder, fedper):
    problem, algorithm, state = fedper
    before = (folder / PARAMS).read_bytes()
    with pytest.raises(InputError, match="pass overwrite=True"):
        save(folder, problem, algorithm, jax.tree.map(lambda leaf: leaf + 1, state))
    assert (folder / PARAMS).read_bytes() == before
    save(folder, problem, algorithm, jax.tree.map(lambda leaf: leaf + 1, state), overwrite=True)
    assert (folder / PARAMS).read_bytes() != before
    assert load(folder).client_names == NAMES
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
    (folder / "notes.txt").touch()
    with pytest.raises(InputError, match="exists already"):
        save(folder, problem, algorithm, state, overwrite=True)


# --- what they answer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto", "local", "fedavg_ft"])
def test_clients_answer_as_they_were_judged(tmp_path, name):
    problem = problem_of()
    algorithm, state = trained(name, problem)
    own, shared = algorithm.models(problem, jax.tree.map(lambda leaf: leaf[0], state), KEY)
    expected = evaluate(problem, own, shared)["accuracy"]
    saved = load(save(tmp_path / "mine", problem, algorithm, state))
    for client, accuracy in enumerate(expected):
        words = np.array(WORDS)[problem.data.test_y[client, : problem.data.test_size[client]]]
        found = saved.predict(rows_of(problem, client), client=NAMES[client])
        assert np.mean(found == words) == pytest.approx(float(accuracy))
        whose = saved.probabilities(rows_of(problem, client), client)
        params = shared | jax.tree.map(lambda leaf, client=client: leaf[client], own)
        logits = problem.model.apply(params, rows_of(problem, client))
        np.testing.assert_allclose(whose, jax.nn.softmax(logits), atol=1e-6)
        np.testing.assert_allclose(whose.sum(-1), 1, atol=1e-5)


def test_the_shared_model_where_there_is_one(tmp_path, folder):
    problem = problem_of()
    x = rows_of(problem, 0)
    algorithm, state = trained("fedavg", problem)
    alone = load(save(tmp_path / "fedavg", problem, algorithm, state))
    assert alone.predict(x).tolist() == alone.predict(x, client="Cyd").tolist()
    algorithm, state = trained("ditto", problem)
    both = load(save(tmp_path / "ditto", problem, algorithm, state))
    shared = problem.model.apply(jax.tree.map(lambda leaf: leaf[0], state["params"]), x)
    np.testing.assert_allclose(both.probabilities(x), jax.nn.softmax(shared), atol=1e-6)
    assert np.abs(both.probabilities(x) - both.probabilities(x, client=1)).max() > 1e-6
    with pytest.raises(InputError, match=r"each client of FedPer has a model of its own; say whose .* Ada, Bob, Cyd"):
        load(folder).predict(x)


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ("Adda", "unknown client 'Adda'; did you mean 'Ada'"),
        ("zzz", r"unknown client 'zzz' \(known: Ada, Bob, Cyd\)"),
        (3, "client is 3, but the clients are 0 to 2"),
        (-1, "client is -1"),
        (True, "client must be of type"),
        (0.0, "client must be of type"),
    ],
)
def test_clients_that_are_not_there(folder, client, words):
    with pytest.raises(InputError, match=words):
        load(folder).predict(np.zeros((1, 6), np.float32), client=client)


def test_seeds_numbers_and_one_line(tmp_path, fedper):
    problem, algorithm, state = fedper
    problem = replace(problem, data=replace(problem.data, client_names=(), label_words=()))
    two = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf + 1]), state)
    first, second = (load(save(tmp_path / f"{k}", problem, algorithm, two, seed=k)) for k in (0, 1))
    x = rows_of(problem, 1)
    assert np.abs(first.probabilities(x, 1) - second.probabilities(x, 1)).max() > 1e-3
    assert first.predict(x, np.int64(1)).dtype.kind == "i"
    assert repr(first) == "SavedModel(FedPer, mlp: rows of shape (6,), 3 classes, clients 0 to 2)"
    many = first.probabilities(np.tile(x, (200, 1)), 1)  # in several chunks
    np.testing.assert_allclose(many, np.tile(first.probabilities(x, 1), (200, 1)), atol=1e-6)
    with pytest.raises(InputError, match="no models of seed 2"):
        save(tmp_path / "third", problem, algorithm, two, seed=2)
    with pytest.raises(InputError, match=r"no models of seed 0; pass the state that fl.train"):
        save(tmp_path / "third", problem, algorithm, jax.tree.map(lambda leaf: leaf[0], state))


def test_pixels_are_scaled_as_in_training(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 4, 4, 1)).astype(np.uint8), np.arange(40) % 2
    data = fl.federated(x, y, partition="iid", num_clients=2)
    problem = fl.Problem(data, fl.make_model("mlp", data.input_shape, 2, width=8))
    algorithm, state = trained("fedavg", problem, rounds=0)
    saved = load(save(tmp_path / "pixels", problem, algorithm, state))
    assert saved.about["inputs"]["scaling"] == "divided by 255 in the network"
    params = jax.tree.map(lambda leaf: leaf[0], state["params"])
    same = jax.nn.softmax(problem.model.apply(params, x.astype(np.float32) / 255))
    np.testing.assert_allclose(saved.probabilities(x), same, atol=1e-6)
    with pytest.raises(
        InputError, match="x is float32, but the rows in training were uint8, divided by 255 in the network"
    ):
        saved.predict(x / np.float32(255))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((2, 5)), r"x has shape \(2, 5\), but a row has shape \(6,\): pass one or more, `\[n, ...\]`$"),
        (np.zeros((0, 6)), r"x has shape \(0, 6\)"),
        (np.zeros(6), r"a single row is x\[None\]"),
        (np.float32(1), r"x has shape \(\)"),
        (np.zeros((2, 6), np.uint8), "x is uint8, but the rows in training were float32, used as they are"),
        (np.full((2, 6), "a"), "x is <U1"),
        (np.array([[0.0] * 6, [np.nan] * 6]), "row 1 of x holds NaN or infinity"),
    ],
)
def test_rows_that_do_not_fit(folder, x, words):
    with pytest.raises(InputError, match=words):
        load(folder).predict(x, client="Ada")
    assert load(folder).predict(np.zeros((2, 6), int).tolist(), client="Ada").shape == (2,)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_algorithms_and_tasks_that_cannot_be_saved(tmp_path):
    problem = problem_of()
    for name in ("knn_per", "fedrod"):
        algorithm = make_algorithm(name)
        with pytest.raises(InputError, match=f"clients of {type(algorithm).__name__} answer with more than"):
            save(tmp_path / "mine", problem, algorithm, {})
    algorithm, state = make_algorithm("fedavg"), {"params": {}}
    with pytest.raises(InputError, match=r"needs one of fl.make_model"):
        save(tmp_path / "mine", quadratic_problem([1.0], [2]), algorithm, state)
    with pytest.raises(InputError, match="task Quadratic is no classification"):
        save(tmp_path / "mine", replace(problem, task=Quadratic()), algorithm, state)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path, fedper):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file"):
        with pytest.raises(InputError, match="exists already and is not an empty folder"):
            save(tmp_path / name, *fedper)
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert {each.name for each in save(tmp_path / "empty", *fedper).iterdir()} == {ABOUT, PARAMS}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "file", "mine"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_nothing_is_half_written(tmp_path, fedper, monkeypatch, failing):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OutputError, match="No space left on device"):
        save(tmp_path / "mine", *fedper)
    assert not list(tmp_path.iterdir())


def test_damage_is_an_error_that_names_the_file(folder):
    whole = {name: (folder / name).read_bytes() for name in (ABOUT, PARAMS)}
    bomb = io.BytesIO()
    np.savez(bomb, x=np.array([{}], object))
    middle = len(whole[PARAMS]) // 2
    flipped = whole[PARAMS][:middle] + bytes([whole[PARAMS][middle] ^ 255]) + whole[PARAMS][middle + 1 :]
    damaged = [(name, whole[name][:cut]) for name in whole for cut in (0, 50, len(whole[name]) // 2)]
    damaged += [(PARAMS, flipped), (PARAMS, bomb.getvalue()), (ABOUT, b"[]"), (ABOUT, b'{"format": "1"}')]
    damaged += [(ABOUT, whole[ABOUT].replace(b"red", b"rod")), (ABOUT, b'{"format": 1}')]
    for name, content in damaged:
        (folder / name).write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"is damaged .* save the model again"):
            load(folder)
        (folder / name).write_bytes(whole[name])
    about = json.loads(whole[ABOUT])
    del about["checksum"]
    with np.load(folder / PARAMS) as archive:
        arrays = dict(archive)
    for other in (about | {"network": 3}, about | {"parts": {"own": "x"}}, about | {"inputs": {}}, {"format": 1}):
        (folder / ABOUT).write_text(json.dumps(other | {"checksum": saved._checksum(other, arrays)}))
        with pytest.raises(CorruptFileError, match=r"model\.json"):
            load(folder)
    (folder / ABOUT).write_bytes(whole[ABOUT])
    assert load(folder).client_names == NAMES
    (folder / PARAMS).unlink()
    with pytest.raises(InputError, match=f"holds no saved model .*{PARAMS}.*; fl.save writes one"):
        load(folder)


def test_a_newer_format(folder):
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps(about | {"format": 2, "package_version": "9.0"}))
    with pytest.raises(
        InputError, match=r"has format 2, written by fedlab_lite 9.0; this version reads .* up to 1: update"
    ):
        load(folder)


class Net(nnx.Module):
    def __init__(self, input_shape, *, width: int = 4, rngs):
        self.dense = nnx.Linear(input_shape[0], width, rngs=rngs)
        self.features = width

    def __call__(self, x):
        return nnx.relu(self.dense(x))


def test_a_network_of_ones_own(tmp_path):
    problem = problem_of()
    problem = replace(problem, model=Model.of(Net, (6,), 3, width=5))
    algorithm, state = trained("fedavg", problem, rounds=0)
    folder = save(tmp_path / "mine", problem, algorithm, state)
    with pytest.raises(InputError, match=r"needs the network class Net; pass it: fl.load\(..., module=Net\)"):
        load(folder)
    assert load(folder, module=Net).predict(rows_of(problem, 0)).shape == (12,)

    class Narrow(Net):
        def __init__(self, input_shape, *, width: int = 4, rngs):
            super().__init__(input_shape, width=width - 1, rngs=rngs)

    Narrow.__name__ = "Net"
    with pytest.raises(InputError, match="does not fit the network Net of this version"):
        load(folder, module=Narrow)
