"""Rounds to a target, simulated seconds, slopes: by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import blobs, history

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.analysis import speedup
from fedlab_lite.engine import train
from fedlab_lite.runs import Settings, build_problem, run
from fedlab_lite.util import InputError

RING = {"algorithm": "deprl", "graph": "ring", "model_options": {"width": 8}, "dataset": "digits", "partition": "iid"}


@pytest.mark.parametrize(
    ("curve", "target", "above", "rounds"),
    [
        ([0.0, 0.2, 0.6], 0.4, True, 1.5),
        ([0.0, 0.2, 0.6], 0.2, True, 1.0),
        ([0.0, 0.2, 0.6], 0.0, True, 0.0),
        ([0.0, 0.5, 0.3, 0.9], 0.4, True, 0.8),  # the first time counts
        ([0.0, 0.2, 0.6], 0.7, True, np.nan),
        ([4.0, 2.0, 1.0], 3.0, False, 0.5),
        ([4.0, np.nan, np.nan], 3.0, False, np.nan),
        ([np.inf, 2.0, 1.0], 3.0, False, 1.0),  # nothing is known of the way there
    ],
)
def test_rounds_to(curve, target, above, rounds):
    found = speedup.rounds_to(history([curve, curve]), "accuracy", target, above=above)
    np.testing.assert_allclose(found, rounds)


def test_a_metric_that_is_not_there():
    with pytest.raises(InputError, match="no metric 'loss_training'"):
        speedup.rounds_to(history([[0.0, 1.0]], seeds=(0,)), "loss_training", 0.5)


def test_the_highest_mean_over_the_evaluations_so_far_from_each_on():
    """The means so far are 4, 3, 2 and 1, 2, 3."""
    run = speedup.highest_mean(history([[4.0, 2.0, 0.0], [1.0, 3.0, 5.0]]), "accuracy")
    np.testing.assert_allclose(run.metrics["accuracy"], [[4, 3, 2], [3, 3, 3]])


@pytest.mark.slow
def test_a_round_is_the_slowest_workers_steps_and_a_message_to_each_neighbour():
    settings = Settings(**RING, num_clients=4, train_size=90, test_size=40, num_rounds=0)
    settings_of_local = Settings(
        **RING | {"algorithm": "local", "graph": ""}, num_clients=4, train_size=90, num_rounds=0
    )
    assert sorted(build_problem(settings).data.size) == [22, 22, 23, 23]
    assert speedup.local_steps(settings) == 3 * 3  # 23 rows by 10, two passes for the head, one for the body
    single = replace(settings, algorithm_options={"batch_size": 10, "head_steps": 2, "steps": 1})
    assert speedup.local_steps(single) == 3
    one_step = replace(settings, algorithm="dpsgd", algorithm_options={"batch_size": 10})
    assert speedup.local_steps(one_step) == 1  # as printed: one batch, then mixing
    ours = run(settings)
    computing, sending = speedup.seconds_a_round(settings, ours, step_seconds=0.5, bandwidth=1000.0)
    assert computing == 4.5
    assert sending == 2 * 4 * ours.num_params["representation"] / 1000
    assert speedup.seconds_a_round(settings_of_local, run(settings_of_local), step_seconds=1.0, bandwidth=1.0) == (
        15,
        0,
    )


def test_slope_of_a_power():
    n = np.array([4, 8, 16, 32])
    np.testing.assert_allclose(speedup.slope(n, np.stack([100 / n, 7 * n**0.5], 1)), [-1, 0.5])
    assert np.isnan(speedup.slope(n, [1.0, np.nan, 1.0, 1.0]))


def test_points_that_are_on_no_line_make_a_slope_uncertain():
    """Times 8, 4, 2, 2: in factors of 2 the line is 2.8 - 0.7 x, with residuals 0.2, -0.1, -0.4 and 0.3."""
    times = np.array([8.0, 4.0, 2.0, 2.0])
    by_hand = np.sqrt((0.2**2 + 0.1**2 + 0.4**2 + 0.3**2) / 2 / 5)
    error, freedom = speedup.slope_error([1, 2, 4, 8], np.stack([times, 3 * times], 1))
    assert (error, freedom) == (pytest.approx(by_hand), 2)
    assert speedup.slope_error([1, 2, 4], [4.0, 2.0, 1.0])[0] == pytest.approx(0, abs=1e-9)
    assert np.isnan(speedup.slope_error([4, 16], [4.0, 2.0])[0])  # two points are always on a line
    assert np.isnan(speedup.slope_error([1, 2, 4], [4.0, np.nan, 1.0])[0])


def test_training_rows_are_judged():
    """Where the test rows are the training rows, both judgements are the same."""
    data = blobs(sizes=[6, 9, 4]).data
    data = replace(data, test_x=data.x, test_y=data.y, test_size=data.size)
    problem = replace(blobs(sizes=[6, 9, 4]), data=data, judge_training=True)
    metrics = train(problem, make_algorithm("local", lr=0.1, epochs=1), num_rounds=2)[0].metrics
    for name in ("loss", "accuracy"):
        np.testing.assert_array_equal(metrics[f"{name}_training"], metrics[name])


@pytest.mark.slow
def test_judging_training_rows_changes_nothing_else():
    settings = Settings(**RING, num_clients=4, train_size=80, test_size=40, num_rounds=1, judge_training=True)
    found, plain = run(settings), run(Settings(**settings.to_dict() | {"judge_training": False}))
    assert found.metrics.keys() - plain.metrics.keys() == {"loss_training", "accuracy_training"}
    for name, values in plain.metrics.items():
        np.testing.assert_array_equal(values, found.metrics[name])
    assert not np.array_equal(found.metrics["loss_training"], found.metrics["loss"])


def at_sizes(method: str, curves: dict[int, list], metric: str = "loss_training") -> dict:
    """Runs of a method with several numbers of workers, which have these curves."""
    runs = {n: replace(history(curve), settings=Settings(**RING, num_clients=n)) for n, curve in curves.items()}
    return {
        f"digits_{n}/{method}": replace(run, metrics={metric: run.metrics["accuracy"], "loss_training": loss})
        for n, run in runs.items()
        for loss in [np.array(curves[n])]
    }


def test_runs_have_converged_halfway_to_the_largest_final_loss():
    """Starts 8 and 6, ends 2, 1 and 4, 1: L* is halfway from 7 to 4; Local has DePRL's L*, equal rows their own."""
    runs = at_sizes("deprl", {4: [[8.0, 2.0], [6.0, 1.0]], 8: [[8.0, 4.0], [6.0, 1.0]]})
    runs |= at_sizes("local", {4: [[6.5, 4.5], [6.5, 6.0]]}) | at_sizes("deprl_rows", {4: [[3.0, 1.0], [3.0, 1.0]]})
    speed = speedup.speed_up(runs)
    assert speed.workers["digits", "deprl"] == {4: "digits_4/deprl", 8: "digits_8/deprl"}
    assert (speed.level("digits", "deprl"), speed.level("digits", "deprl", share=1.0)) == (5.5, 4.0)
    assert (speed.level("digits", "local"), speed.level("digits", "deprl_rows")) == (5.5, 2.0)
    found = speed.rounds()
    assert list(found) == list(runs)
    np.testing.assert_allclose(found["digits_4/deprl"], [2.5 / 6, 0.5 / 5])
    np.testing.assert_allclose(found["digits_4/local"], [0.5, np.nan])
    by_hand = np.log([found["digits_8/deprl"][0] / found["digits_4/deprl"][0], 1.0]) / np.log(2)
    np.testing.assert_allclose(
        speed.slopes({k: v for k, v in found.items() if "local" not in k})["digits", "deprl"], by_hand, atol=1e-12
    )
    assert ("digits", "local") not in speed.slopes({k: v for k, v in found.items() if "local" not in k})


def test_runs_that_cannot_be_told_apart_and_rivals_without_deprl_are_refused():
    runs = at_sizes("deprl", {4: [[2.0, 1.0]]})
    with pytest.raises(InputError, match="digits_4/deprl and other/deprl share data set, method and number of workers"):
        speedup.speed_up(runs | {"other/deprl": runs["digits_4/deprl"]})
    with pytest.raises(InputError, match="no run of deprl on digits is here"):
        speedup.speed_up(at_sizes("local", {4: [[2.0, 1.0]]})).rounds()


def test_a_loss_that_ends_above_its_start_has_no_level():
    speed = speedup.speed_up(at_sizes("deprl", {4: [[2.0, 1.0]], 8: [[2.0, 3.0]]}))
    assert np.isnan(speed.level("digits", "deprl"))
    assert np.isnan(np.concatenate(list(speed.rounds().values()))).all()


def test_runs_with_the_measure_of_the_theorem_are_judged_by_its_mean_too():
    """Means of M(k) so far: 4, 3, 2 and 6, 3, 2; from each round on the same. Halfway from 4 to 2 is 3."""
    speed = speedup.speed_up(
        at_sizes("deprl_steps", {4: [[4.0, 2.0, 0.0]], 8: [[6.0, 0.0, 0.0]]}, metric="stationarity")
    )
    assert speed.workers["digits", "deprl_steps_m"] == {4: "digits_4/deprl_steps_m", 8: "digits_8/deprl_steps_m"}
    assert speed.level("digits", "deprl_steps_m") == 3.0
    np.testing.assert_allclose(speed.rounds()["digits_4/deprl_steps_m"], [1.0])
    assert speed.level("digits", "deprl_steps") == 2.5  # of the loss itself: from 5, the mean start, to 0
