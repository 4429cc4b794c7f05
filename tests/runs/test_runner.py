"""run: keys, evaluation, resume to the bit, honest divergence, and a name for every run that changes when it must."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from helpers import blobs
from recorded_runs import all_of, fedavg, recorder, same

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.data import Federated
from fedlab_lite.data import load as data_module
from fedlab_lite.engine import Problem, training
from fedlab_lite.nn import make_model
from fedlab_lite.runs import run, runner
from fedlab_lite.runs.runner import final_state
from fedlab_lite.util import InputError, files, progress

pytestmark = pytest.mark.usefixtures("small_problem")


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_enable_x64", True),
        ("jax_threefry_partitionable", False),
        ("jax_default_prng_impl", "rbg"),
        ("jax_random_seed_offset", 5),
    ],
)
def test_what_changes_numbers_and_not_the_name_is_refused(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        with pytest.raises(InputError, match=f"{name.upper()} is .*changes the numbers of a run"):
            run(fedavg())
    finally:
        jax.config.update(name, before)
