"""run: keys, evaluation, resume to the bit, honest divergence, and a name for every run that changes when it must."""

import copy
import json
import pickle
import random
import zipfile
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import blobs
from hypothesis import given
from hypothesis import strategies as st
from kill_and_resume import kill_and_resume

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.data import Federated
from fedlab_lite.data import load as data_module
from fedlab_lite.engine import Algorithm, History, Problem, training
from fedlab_lite.nn import make_model
from fedlab_lite.runs import Settings, measured, run, run_all, runner, store
from fedlab_lite.runs.runner import final_state, run_name
from fedlab_lite.util import (
    CorruptFileError,
    InputError,
    MissingDataError,
    NotStoredError,
    OutputError,
    files,
    progress,
)


def all_of(runs, **options) -> list[History]:
    """The histories of a list of settings, in its order."""
    return list(run_all(dict(enumerate(runs)), **options).values())


@dataclass(frozen=True)
class Recorder(Algorithm):
    """Adds `lr` to every parameter of a round and remembers who was sampled; judged in two ways."""

    def init(self, problem, key):
        zeros = jax.tree.map(jnp.zeros_like, problem.model.init(key))
        return {"params": zeros, "seen": jnp.zeros(problem.num_clients), "key": key, "last": jnp.zeros(())}

    owned = ("seen",)

    def round(self, problem, state, at):
        cohort = at.cohort[at.order()]
        seen = state["seen"].at[cohort].add(1)
        problem.downlink({})
        problem.transmit(at, jnp.zeros((len(at.cohort), 5)))
        params = jax.tree.map(lambda leaf: leaf + self.lr, state["params"])
        distinct = jnp.all(jnp.diff(jnp.sort(cohort)) > 0)
        return {"params": params, "seen": seen, "key": at.key, "last": jnp.float32(distinct)}

    def models(self, problem, state, key):
        return {}, state["params"]

    def other_models(self, problem, state, key):
        return {"same": self.models(problem, state, key)}

    def join(self, problem, state, key):
        return {"": self.models(problem, state, key), "again": self.models(problem, state, key)}

    def monitor(self, problem, state):
        return {"seen": state["seen"].sum(), "distinct": state["last"], "bias": state["params"]["head"]["bias"][0]}


@pytest.fixture(autouse=True)
def small_problem(monkeypatch):
    """Every run here trains on five ragged clients; only what the settings say besides counts."""
    monkeypatch.setattr(runner, "build_problem", lambda settings: blobs())
    monkeypatch.setitem(ALGORITHMS, "recorder", Recorder)


def recorder(**options) -> Settings:
    return Settings(**{"algorithm": "recorder", "num_clients": 5, "num_rounds": 4, "cohort_size": 2} | options)


def fedavg(**options) -> Settings:
    base = {"algorithm": "fedavg", "algorithm_options": {"lr": 0.1, "epochs": 1}, "num_clients": 5, "num_rounds": 6}
    return Settings(**base | {"cohort_size": 3, "seeds": (3, 4)} | options)


def same(a: History, b: History) -> bool:
    """Equal to the bit in all but the time taken."""
    arrays = [(a.rounds, b.rounds), (a.client_accuracy, b.client_accuracy)]
    arrays += [(a.metrics[name], b.metrics[name]) for name in a.metrics | b.metrics]
    about = [(each.seeds, each.num_rounds, each.diverged, each.data_fingerprint) for each in (a, b)]
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in arrays) and about[0] == about[1]


# --- settings ---------------------------------------------------------------------------------------------------


@given(
    lr=st.floats(1e-4, 1) | st.integers(1, 3),
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    rounds=st.integers(0, 1000),
)
def test_settings_survive_json(lr, seeds, rounds):
    settings = Settings(algorithm_options={"lr": lr}, seeds=seeds, num_rounds=rounds)
    again = Settings(**json.loads(json.dumps(settings.to_dict())))
    assert again == settings
    assert again.canonical() == settings.canonical()
    assert hash(again) == hash(settings)


def test_equal_settings_have_one_spelling():
    a = Settings(algorithm_options={"lr": 1, "batch_size": 2}, alpha=1)
    b = Settings(algorithm_options=(("batch_size", 2), ("lr", 1.0)), alpha=1.0)
    assert a == b
    assert a.canonical() == b.canonical()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_round": 3}, "unknown setting 'num_round'; did you mean 'num_rounds'"),
        ({"num_rounds": 2.5}, "num_rounds must be of type int, at least 0, got 2.5"),
        ({"num_rounds": True}, "num_rounds must be of type int"),
        ({"num_rounds": -1}, "num_rounds must be of type int, at least 0, got -1"),
        ({"seeds": 3}, "seeds must be of type"),
        ({"seeds": []}, "seeds must be of type .*, not empty, each 0 to 2.31 - 1"),
        ({"seeds": [1, 1]}, "different"),
        ({"alpha": 0.0}, "alpha must be of type float, above 0, got 0.0"),
        (
            {"num_clients": 3, "unseen_clients": 3},
            "unseen_clients is 3 of 3 clients; at least one client must train",
        ),
        (
            {"num_clients": 3, "unseen_clients": 1, "cohort_size": 3},
            "cohort_size is 3, but 2 clients train; lower it, or use None",
        ),
        ({"num_clients": 3, "cohort_size": 4}, "cohort_size is 4, but 3 clients train; lower it, or use None"),
        (
            {"num_clients": 3, "budgets": [3, 10]},
            "one number of solver iterations, 1 or more, for each of the 3 clients",
        ),
        ({"validation_size": 1.0}, "validation_size must be of type float, at least 0 and below 1, got 1.0"),
        ({"message_noise": 1.0}, "set message_clip as well"),
        ({"message_clip": 0.0}, r"message_clip must be of type float \| None, above 0, got 0.0"),
        ({"seeds": [2**31]}, "each 0 to 2.31 - 1"),
        ({"num_clients": 2, "budgets": [0, 10]}, r"budgets must be of type .*, each at least 1, got \[0, 10\]"),
        ({"fusion": "iteration"}, "fusion must be one of own, .*, got 'iteration'; did you mean 'iterations'"),
        ({"partition": "dirichle"}, "partition must be one of iid, .*, got 'dirichle'; did you mean 'dirichlet'"),
        ({"graph": "rign"}, "graph must be one of ring, star, random, complete, '', got 'rign'; did you mean 'ring'"),
        ({"graph_seed": -1}, "graph_seed must be of type int, 0 to 2.31 - 1, got -1"),
        ({"seeds": [0, -1]}, r"seeds must .*, not empty, each 0 to 2.31 - 1, got \[0, -1\]"),
        ({"common_test": 1}, r"common_test must be of type bool, got 1 \(int\)"),
        ({"eval_every": 0}, "eval_every must be of type int, at least 1, got 0"),
        ({"algorithm": "fedavgg"}, "unknown algorithm 'fedavgg'; did you mean 'fedavg'"),
        ({"model": "mpl"}, "unknown model 'mpl'; did you mean 'mlp'"),
        ({"model": 3}, "model must be of type str"),
        ({"algorithm_options": {"rh": 1.0}, "algorithm": "fedeq"}, "did you mean 'rho'"),
        ({"algorithm_options": None}, "algorithm_options must be a dictionary, or pairs"),
        ({"model_options": 5}, "model_options must be a dictionary, or pairs"),
        ({"model_options": "ab"}, "model_options must be a dictionary, or pairs"),
        ({"algorithm_options": [("lr", 0.1, 3)]}, "algorithm_options must be a dictionary, or pairs"),
        ({"algorithm_options": {"lr": "fast"}}, "lr of algorithm fedavg must be of type float"),
        ({"algorithm_options": {"batch_size": 0}}, "batch_size"),
        ({"model_options": {"width": "wide"}}, "width of model mlp must be of type int"),
        ({"model_options": {"width": -1}}, "width of model mlp must be of type int, at least 1, got -1"),
        ({"model_options": {"width": 2.5}}, "width of model mlp must be of type int, at least 1, got 2.5"),
        ({"model_options": {"width": True}}, "width of model mlp must be of type int, at least 1, got True"),
        ({"model_options": {"widht": 8}}, "unknown option of model mlp 'widht'; did you mean 'width'"),
        ({"model": "cnn", "model_options": {"channels": [4, -4]}}, r"channels of model cnn .*each at least 1"),
        ({"model_options": {"kappa": 0.5}}, "unknown option of model mlp 'kappa'"),
    ],
)
def test_bad_settings(values, message):
    with pytest.raises(InputError, match=message):
        Settings(**values)


@pytest.mark.parametrize(("name", "near"), [("rounds", "num_rounds"), ("num_client", "num_clients"), ("seed", "seeds")])
def test_a_name_that_is_no_setting(name, near):
    with pytest.raises(InputError, match=f"unknown setting '{name}'; did you mean .*'{near}'"):
        Settings(**{name: 3})
    settings = Settings("digits", num_rounds=3)
    assert replace(settings, num_rounds=3) == copy.deepcopy(settings) == pickle.loads(pickle.dumps(settings))


# --- rounds and evaluation --------------------------------------------------------------------------------------


def test_history_of_a_fake_algorithm_is_exact():
    history = run(recorder(seeds=(0, 1), algorithm_options={"lr": 0.5}))
    assert history.rounds.tolist() == [0, 1, 2, 3, 4]
    assert history.metrics["seen"].tolist() == [[0, 2, 4, 6, 8]] * 2  # two clients per round
    assert history.metrics["bias"].tolist() == [[0, 0.5, 1, 1.5, 2]] * 2
    assert history.metrics["distinct"][:, 1:].all()
    pooled = {"accuracy_pooled", "accuracy_gap"}
    assert set(history.metrics) == pooled | {
        "accuracy",
        "loss",
        "accuracy_same",
        "loss_same",
        "seen",
        "bias",
        "distinct",
    }
    np.testing.assert_array_equal(history.metrics["accuracy"], history.metrics["accuracy_same"])
    assert history.client_accuracy.shape == (2, 5)
    np.testing.assert_allclose(history.client_accuracy.mean(axis=1), history.metrics["accuracy"][:, -1], rtol=1e-6)
    np.testing.assert_allclose(history.metrics["loss"][:, 0], np.log(3), rtol=1e-5)  # zero params, three classes
    assert history.message_bytes == {"up": 20, "down": 0}
    assert history.num_params == {"representation": 6 * 16 + 16 + 16 * 8 + 8, "head": 8 * 3 + 3}
    assert history.diverged == (False, False)
    assert history.data_source == "made by a test"
    assert history.versions["jax"] == jax.__version__


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_leaves_of_the_first_state_share_no_buffer(name):
    """Rounds donate the state; a buffer that is donated twice ends the process."""
    problem = blobs(model="gaussian_mlp", width=8, depth=1, features=8, latent=4) if name == "fedcr" else blobs()
    state = training.start([make_algorithm(name)], training.place_problem(problem), [jax.random.key(0)])
    leaves = [leaf for leaf in jax.tree.leaves(state) if leaf.size]
    shards = [shard.data.unsafe_buffer_pointer() for leaf in leaves for shard in leaf.addressable_shards]
    assert len(set(shards)) == len(shards)


@pytest.mark.slow
def test_a_grid_of_step_sizes_and_penalties_is_one_program():
    """Floats are leaves of an algorithm: only a new integer or word compiles again."""
    training._round.clear_cache()
    for lr, rho in (0.1, 0.01), (0.2, 0.01), (0.1, 1):
        run(fedavg(algorithm="fedeq", algorithm_options={"lr": lr, "rho": rho}, num_rounds=1))
    assert training._round._cache_size() == 1
    run(fedavg(algorithm="fedeq", algorithm_options={"epochs": 2}, num_rounds=1))
    assert training._round._cache_size() == 1
    run(fedavg(algorithm="fedeq", algorithm_options={"batch_size": 7}, num_rounds=1))
    assert training._round._cache_size() == 2


@pytest.mark.slow
def test_one_name_one_number(count_rounds):
    """The same bits alone, beside other seeds, and in a sweep; each trajectory is stored under its own name."""
    grid = [
        fedavg(
            algorithm="fedeq", algorithm_options={"rho": rho, "epochs": epochs, "lr": 0.1}, num_rounds=3, seeds=[0, 1]
        )
        for rho, epochs in ((0.01, 1), (1.0, 1), (1.0, 2))
    ]
    together = all_of([*grid, fedavg(num_rounds=2)])
    assert len(count_rounds) == 3 * 2 * 3 + 2 * 2
    assert [history.settings for history in together[:3]] == grid
    assert not list(files.runs_dir().glob("*.ckpt"))
    assert len(list(files.runs_dir().glob("*.npz"))) == 3 * 2 + 2
    for settings, history in zip(grid, together, strict=False):
        assert run(settings).seconds == history.seconds  # read back
        assert same(run(settings, force=True), history)
        for index, seed in enumerate(settings.seeds):
            alone = run(replace(settings, seeds=(seed,)), force=True)
            assert alone.metrics.keys() == history.metrics.keys()
            for name, values in alone.metrics.items():
                np.testing.assert_array_equal(history.metrics[name][index], values[0], err_msg=name)
            np.testing.assert_array_equal(history.client_curves[index], alone.client_curves[0])
    assert not np.allclose(together[0].metrics["consensus"], together[1].metrics["consensus"])


def test_a_new_seed_or_member_trains_itself_alone(count_rounds):
    run(fedavg(seeds=(3, 4), num_rounds=2))
    assert len(count_rounds) == 4
    run(fedavg(seeds=(3, 4, 5), num_rounds=2))
    assert len(count_rounds) == 6
    all_of([fedavg(seeds=(3,), num_rounds=2, algorithm_options={"lr": lr, "epochs": 1}) for lr in (0.1, 0.2)])
    assert len(count_rounds) == 8


def test_trajectories_in_batches(count_rounds):
    """An accelerator may train several at a time: other last bits, and the history says so."""
    grid = [fedavg(num_rounds=2, algorithm_options={"lr": lr, "epochs": 1}) for lr in (0.1, 0.2)]
    alone = all_of(grid)
    assert len(count_rounds) == 8
    batched = all_of(grid, force=True, trajectories_at_once=3)
    assert len(count_rounds) == 8 + 2 * 2  # four trajectories: three, and one
    assert [history.trajectories_at_once for history in alone] == [1, 1]
    assert [history.trajectories_at_once for history in batched] == [3, 3]
    for a, b in zip(alone, batched, strict=True):
        np.testing.assert_allclose(a.metrics["loss"], b.metrics["loss"], atol=1e-5)
    with pytest.raises(InputError, match="trajectories_at_once must be of type int, at least 1, got 0"):
        all_of(grid, trajectories_at_once=0)


def test_a_killed_sweep_goes_on(monkeypatch, count_rounds):
    grid = [fedavg(algorithm_options={"lr": lr}, num_rounds=4) for lr in (0.1, 0.2)]
    want = all_of(grid, force=True)
    for settings in grid:
        for seed in settings.seeds:
            store.set_aside(run_name(settings, seed, blobs().data.fingerprint()))
    counted, calls = training._round, []

    def dies(*args, **kwargs):
        calls.append(1)
        if len(calls) == 4 + 3:
            raise KeyboardInterrupt
        return counted(*args, **kwargs)

    monkeypatch.setattr(training, "_round", dies)
    with pytest.raises(KeyboardInterrupt):
        all_of(grid, checkpoint_seconds=0)
    got = all_of(grid)
    assert len(calls) == 4 + 3 + 2 + 2 * 4  # one seed was done, two rounds of the next were in its checkpoint
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.metrics["loss"], b.metrics["loss"])


def test_a_batch_that_was_killed_between_its_writes(monkeypatch):
    """Its members stand at different rounds; each goes on from its own, to the same result."""
    grid = [fedavg(algorithm_options={"lr": lr, "epochs": 1}, seeds=(3,), num_rounds=4) for lr in (0.1, 0.2)]
    want = all_of(grid, trajectories_at_once=2)
    for settings in grid:
        store.set_aside(run_name(settings, 3, blobs().data.fingerprint()))
    original, writes = store.save_tree, []

    def dies(file, tree):
        writes.append(file)
        if len(writes) == 4:
            raise Killed
        return original(file, tree)

    with monkeypatch.context() as patch:
        patch.setattr(store, "save_tree", dies)
        with pytest.raises(Killed):
            all_of(grid, trajectories_at_once=2, checkpoint_seconds=0)
    stands = [store.load_tree(file)["progress"]["next"] for file in sorted(files.runs_dir().glob("*.ckpt"))]
    assert sorted(stands) == [1, 2]
    got = all_of(grid, trajectories_at_once=2)
    assert not list(files.runs_dir().glob("*.ckpt"))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.metrics["loss"], b.metrics["loss"], atol=1e-5)


def test_newcomers_join_when_the_others_are_judged(monkeypatch):
    def problem(settings):
        seen, newcomers = blobs().data.split(2)
        return replace(blobs(), data=seen, newcomers=newcomers)

    monkeypatch.setattr(runner, "build_problem", problem)
    history = run(fedavg(algorithm="fedrep", algorithm_options={"lr": 0.1}, num_rounds=5, seeds=[0]))
    assert history.client_accuracy.shape == (1, 3)
    assert {"accuracy_unseen", "loss_unseen"} <= history.metrics.keys()
    assert history.metrics["loss_unseen"][0, -1] < history.metrics["loss_unseen"][0, 0]
    recorded = run(recorder(num_rounds=1))
    np.testing.assert_array_equal(recorded.metrics["loss_unseen"], recorded.metrics["loss_unseen_again"])
    assert recorded.data_fingerprint != blobs().data.split(2)[0].fingerprint()  # newcomers' data count as well


def test_the_pooled_accuracy_weighs_labels_and_not_clients():
    """Two clients, 3 and 1 test rows that count; of a text, the characters that are no padding."""
    model = make_model("mlp", (2,), 2, width=1, depth=1, features=0)
    x, y = np.ones((2, 3, 2), np.float32), np.array([[0, 0, 0], [1, 0, 0]], np.int32)
    data = Federated(x, y, np.array([3, 1]), x, y, np.array([3, 1]), x[0, :0], "rows", "made by a test", 2)
    history, _ = training.train(Problem(data, model), make_algorithm("local"), num_rounds=0)
    own = history.client_accuracy[0]
    assert sorted(own) == [0.0, 1.0]  # both clients hear the same answer
    assert history.metrics["accuracy_pooled"][0, 0] == pytest.approx((3 * own[0] + own[1]) / 4)

    texts = data_module.federated("roles", partition="natural", num_clients=2, train_size=20, test_size=8)
    problem = Problem(texts, make_model("transformer4", texts.input_shape, texts.num_classes, width=8))
    history, _ = training.train(problem, make_algorithm("local"), num_rounds=0)
    characters = [(texts.test_y[i, : texts.test_size[i]] > 0).sum() for i in range(2)]
    want = np.average(history.client_accuracy[0], weights=characters)
    assert history.metrics["accuracy_pooled"][0, 0] == pytest.approx(want, abs=1e-6)


def test_evaluations_every_third_round_and_the_last():
    history = run(recorder(num_rounds=7, eval_every=3))
    assert history.rounds.tolist() == [0, 3, 6, 7]


def test_no_rounds_at_all():
    history = run(recorder(num_rounds=0))
    assert history.rounds.tolist() == [0]
    assert history.final("bias").tolist() == [0.0]


def test_final_is_the_mean_over_the_last_rounds_without_the_start():
    history = run(recorder(num_rounds=4, algorithm_options={"lr": 1.0}))
    assert history.final("bias", last=2).tolist() == [3.5]  # rounds 3 and 4
    assert history.final("bias").tolist() == [2.5]  # rounds 1 to 4: fewer than ten
    with pytest.raises(InputError, match="no metric 'acuracy'"):
        history.final("acuracy")


def test_all_clients_take_part_without_a_cohort_size():
    problem, state = final_state(recorder(cohort_size=None, num_rounds=3))
    assert state["seen"].tolist() == [[3.0] * 5]
    assert problem.num_clients == 5


def test_a_seed_gives_the_same_alone_and_in_a_batch():
    both, alone = run(fedavg(seeds=(3, 4))), run(fedavg(seeds=(4,)), force=True)
    for name, values in alone.metrics.items():
        np.testing.assert_array_equal(values[0], both.metrics[name][1])
    assert not np.allclose(both.metrics["loss"][0], both.metrics["loss"][1])


def test_fedavg_learns():
    history = run(fedavg(num_rounds=15))
    assert (history.metrics["loss"][:, -1] < 0.5 * history.metrics["loss"][:, 0]).all()


def test_divergence_is_reported_not_raised():
    history = run(fedavg(algorithm_options={"lr": 1e6, "epochs": 5}, num_rounds=3))
    assert history.diverged == (True, True)
    assert not np.isfinite(history.metrics["loss"][:, -1]).any()
    again = run(fedavg(algorithm_options={"lr": 1e6, "epochs": 5}, num_rounds=3))
    assert same(history, again) is False  # NaN is not equal to NaN
    assert again.diverged == (True, True)


def test_cohort_larger_than_the_data():
    with pytest.raises(InputError, match="cohort_size is 9 of 5 clients"):
        run(recorder(num_clients=10, cohort_size=9))


# --- the store --------------------------------------------------------------------------------------------------


@pytest.fixture
def count_rounds(monkeypatch):
    """A list that grows with every computed round."""
    calls, original = [], training._round

    def counted(*args):
        calls.append(args[3])
        return original(*args)

    monkeypatch.setattr(training, "_round", counted)
    return calls


def test_a_finished_run_is_read_back(count_rounds):
    first = run(fedavg())
    assert count_rounds == [0, 1, 2, 3, 4, 5] * 2
    second = run(fedavg())
    assert len(count_rounds) == 12
    assert same(first, second)
    assert second.seconds == first.seconds
    assert [file.suffix for file in files.runs_dir().iterdir()] == [".npz", ".npz"]
    forced = run(fedavg(), force=True)
    assert len(count_rounds) == 24
    assert same(first, forced)


def test_keep_state_recomputes_once(count_rounds):
    run(fedavg())
    run(fedavg(), keep_state=True)  # of what is trained now: nothing is
    assert len(count_rounds) == 12
    _, state = final_state(fedavg())
    assert len(count_rounds) == 24
    _, again = final_state(fedavg())
    assert len(count_rounds) == 24
    assert jax.tree.all(jax.tree.map(np.array_equal, state, again))
    assert jax.tree.leaves(state)[0].shape[0] == 2  # the seed axis


def test_numbers_taken_from_the_final_state_are_kept(count_rounds):
    """A figure that needs them draws itself again without the state."""

    def biases(problem, state):
        return {"bias": state["params"]["head"]["bias"]}

    first = measured(recorder(seeds=(0, 1)), "biases", biases)
    assert first["bias"].shape == (2, 3)
    assert (first["bias"] == 4 * 0.01).all()
    for file in files.runs_dir().glob("*.state"):
        file.unlink()
    rounds = len(count_rounds)
    np.testing.assert_array_equal(measured(recorder(seeds=(0, 1)), "biases", biases)["bias"], first["bias"])
    assert len(count_rounds) == rounds


def test_runs_behind_committed_figures_are_read(count_rounds, monkeypatch):
    history = run(fedavg())
    measured(fedavg(), "norm", lambda problem, state: {"norm": jnp.ones(2)})
    count_rounds.clear()
    home = files.figures_dir() / "fedeq" / "runs"
    copies = store.publish(runner.run_names(history), home)
    assert sorted(file.name for file in copies) == sorted(file.name for file in home.iterdir())
    assert len(copies) == 4  # two seeds, and what was measured of each
    for file in files.runs_dir().iterdir():
        file.unlink()
    assert same(run(fedavg()), history)
    assert measured(fedavg(), "norm", None)["norm"].shape == (2, 2)
    assert count_rounds == []
    monkeypatch.setenv("FEDLAB_STORED_ONLY", "1")
    assert same(run(fedavg()), history)
    with pytest.raises(NotStoredError, match="2 of the runs are not stored"):
        run(fedavg(num_rounds=9))
    monkeypatch.delenv("FEDLAB_STORED_ONLY")
    run(fedavg(), force=True)
    assert len(count_rounds) == 12
    assert sorted(copies) == sorted(home.iterdir())  # --force leaves what is committed alone


def test_a_run_too_large_for_one_file(monkeypatch):
    monkeypatch.setattr(store, "MAX_BYTES", 1000)
    history = run(fedavg())
    names = sorted(file.name.partition(".")[2] for file in files.runs_dir().iterdir())
    assert names == ["curves.npz", "curves.npz", "npz", "npz"]
    again = run(fedavg())
    np.testing.assert_array_equal(again.client_accuracy, history.client_accuracy)
    np.testing.assert_allclose(again.client_curves, history.client_curves, atol=5e-4)
    next(files.runs_dir().glob("*.curves.npz")).unlink()
    with pytest.raises(CorruptFileError, match=r"curves.npz, which has its clients' curves, is missing"):
        run(fedavg())
    assert same(run(fedavg(), force=True), history)


def test_a_run_from_elsewhere_is_shown_without_its_data(monkeypatch):
    history = run(fedavg())

    def no_data(settings):
        raise MissingDataError("cifar10 is not here")

    monkeypatch.setattr(runner, "build_problem", no_data)
    assert same(run(fedavg()), history)
    with pytest.raises(MissingDataError):
        run(fedavg(num_rounds=7))
    with pytest.raises(MissingDataError):
        run(fedavg(), force=True)


# --- interruptions ----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends the process as far as `run` can tell."""


@pytest.mark.slow
def test_thirty_interruptions_at_random_points(monkeypatch):
    settings = fedavg(num_rounds=12, algorithm="fedeq", algorithm_options={"lr": 0.1, "epochs": 1})
    calm, (_, calm_state) = run(settings, force=True), final_state(settings)
    monkeypatch.setenv("FEDLAB_RUNS", str(files.runs_dir() / "killed"))
    rng = random.Random(0)
    fuse = [0]

    def tick():
        fuse[0] -= 1
        if fuse[0] == 0:
            raise Killed

    def fused(function, before=True):
        def wrapped(*args, **kwargs):
            if before:
                tick()
            result = function(*args, **kwargs)
            tick()
            return result

        return wrapped

    monkeypatch.setattr(training, "_round", fused(training._round))
    monkeypatch.setattr(store, "write_atomic", fused(store.write_atomic))
    monkeypatch.setattr(files.os, "replace", fused(files.os.replace))
    kills = 0
    while True:
        fuse[0] = rng.randint(1, 9) if kills < 30 else 10**6
        try:
            resumed = run(settings, checkpoint_seconds=0, keep_state=True)
        except Killed:
            kills += 1
        else:
            break
    assert kills >= 15  # it may have finished before all thirty
    assert same(calm, resumed)
    assert jax.tree.all(jax.tree.map(np.array_equal, calm_state, final_state(settings)[1]))


@pytest.mark.slow
def test_killed_processes_resume(tmp_path):
    result = kill_and_resume(3, tmp_path)
    assert result == {"kills": 3, "resumed": result["resumed"], "same": True, "checkpoints left": []}
    assert result["resumed"] >= 1


def interrupted(settings, monkeypatch, at=3):
    """Leave a checkpoint behind."""
    original = training._round

    def stop(*args):
        if args[3] == at:
            raise Killed
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_round", stop)
        with pytest.raises(Killed):
            run(settings, checkpoint_seconds=0)
    return next(files.runs_dir().glob("*.ckpt"))


def test_checkpoints_are_written_by_the_clock(monkeypatch):
    with monkeypatch.context() as patch:
        written = []
        patch.setattr(store, "save_tree", lambda file, tree: written.append(tree["progress"]["next"]))
        run(fedavg(), checkpoint_seconds=1e9)
        assert written == []
        run(fedavg(), force=True, checkpoint_seconds=0)
        assert written == [1, 2, 3, 4, 5] * 2  # none after the last round


def test_a_run_goes_on_where_it_was(monkeypatch, count_rounds):
    interrupted(fedavg(), monkeypatch)
    count_rounds.clear()
    resumed = run(fedavg())
    assert count_rounds == [3, 4, 5, *range(6)]
    assert same(resumed, run(fedavg(), force=True))


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
@pytest.mark.parametrize("kind", ["npz", "ckpt"])
def test_damaged_files_are_named_and_kept(monkeypatch, kind, damage):
    file = interrupted(fedavg(), monkeypatch)
    if kind == "npz":
        run(fedavg())
        file = next(files.runs_dir().glob("*.npz"))
    content = bytearray(file.read_bytes())
    place = len(content) // 2
    if kind == "npz":  # a byte of the data: zip's own headers hold some that are not read
        with zipfile.ZipFile(file) as archive:
            largest = max(archive.infolist(), key=lambda member: member.compress_size)
        place = content.index(largest.filename.encode()) + len(largest.filename) + 20 + largest.compress_size // 2
    content[place] ^= 255
    broken = {"truncate": bytes(content[: len(content) // 2]), "flip": bytes(content), "empty": b""}[damage]
    file.write_bytes(broken)
    with pytest.raises(CorruptFileError, match=r"(?s)corrupt .*--force") as caught:
        run(fedavg())
    assert str(file) in str(caught.value)
    assert file.read_bytes() == broken  # nothing lost
    history = run(fedavg(), force=True)
    assert file.with_name(f"{file.name}.corrupt").read_bytes() == broken
    assert same(history, run(fedavg()))


def test_a_checkpoint_of_another_shape_is_corrupt(monkeypatch):
    file = interrupted(fedavg(), monkeypatch)
    tree = store.load_tree(file)
    tree["state"]["0"] = tree["state"]["0"][:1]
    store.save_tree(file, tree)
    with pytest.raises(CorruptFileError, match="other shapes"):
        run(fedavg())


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk(monkeypatch, call):
    """The checkpoint before stays, no temporary file does, and the run goes on once there is room."""
    checkpoint = interrupted(fedavg(), monkeypatch)
    before = checkpoint.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, call, full)
        with pytest.raises(OutputError, match="No space left on device"):
            run(fedavg(), checkpoint_seconds=0)
    assert [file.name for file in files.runs_dir().iterdir()] == [checkpoint.name]
    assert checkpoint.read_bytes() == before
    assert same(run(fedavg()), run(fedavg(), force=True))


def test_two_runs_of_the_same_settings_at_once():
    """Every file of one is written in the middle of the other."""
    inner = []

    original = store.save_tree

    def nested(file, tree):
        if not inner:
            inner.append(None)
            inner[0] = run(fedavg(), checkpoint_seconds=0)  # the other process, from start to end
        return original(file, tree)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "save_tree", nested)
        outer = run(fedavg(), checkpoint_seconds=0)
    assert same(outer, inner[0])
    assert [file.suffix for file in files.runs_dir().iterdir()] == [".npz", ".npz"]


@pytest.mark.slow
def test_two_processes_at_once(tmp_path):
    from kill_and_resume import finish, start

    processes = [start(tmp_path / "shared", rounds=40) for _ in range(2)]
    for process in processes:
        finish(process)
    runs = list((tmp_path / "shared").glob("*.npz"))
    assert [store.load_arrays(file)[1]["num_rounds"] for file in runs] == [40, 40]
    assert not list((tmp_path / "shared").glob("*.ckpt"))


# --- progress ---------------------------------------------------------------------------------------------------


def test_progress_is_silent_in_batch_and_shown_on_demand(capsys, monkeypatch):
    run(recorder())
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.progress_bar("fedavg · mlp", 3, shown=True) as advance:
        advance(3)
    assert "fedavg · mlp" in capsys.readouterr().err


def test_watched(monkeypatch):
    for name in ("CI", "PYTEST_CURRENT_TEST", "FEDLAB_BATCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert progress.watched()
    monkeypatch.setenv("FEDLAB_BATCH", "1")
    assert not progress.watched()


def test_what_is_no_settings():
    with pytest.raises(InputError, match=r"is no Settings; write Settings\(...\), or Settings\(\*\*values\)"):
        run({"num_rounds": 3})
    with pytest.raises(InputError, match=r"lr is an option of the algorithm; write algorithm_options=\{'lr': ...\}"):
        Settings(lr=0.1)
    with pytest.raises(InputError, match=r"width is an option of the model; write model_options=\{'width': ...\}"):
        Settings(width=8)
