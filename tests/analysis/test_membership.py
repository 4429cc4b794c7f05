"""Membership inference: made-up losses with known answers, a model that has learnt its rows by heart, and the bound."""

import math
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from helpers import blobs
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite.algorithms.local import Local
from fedlab_lite.analysis.membership import advantage_bound, membership_advantage, row_losses
from fedlab_lite.engine import Plan
from fedlab_lite.engine.training import advance, place_problem
from fedlab_lite.util import InputError

LOSSES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5, math.inf]), min_size=2, max_size=12)


def test_equal_losses_give_nothing_away():
    losses = np.random.default_rng(0).exponential(size=50)
    found = membership_advantage(losses, losses)
    assert found.advantage == 0
    assert found.auc == pytest.approx(0.5)
    constant = membership_advantage(np.ones(5), np.ones(9))
    assert (constant.advantage, constant.auc, constant.auc_error) == (0.0, 0.5, 0.0)


def test_separated_losses_give_everything_away():
    found = membership_advantage([0.1, 0.2, 0.3], [0.4, 5.0, math.inf])
    assert (found.advantage, found.auc, found.threshold, found.error) == (1.0, 1.0, 0.3, 0.0)
    reverse = membership_advantage([4.0, 5.0], [1.0, 2.0])  # the attack takes small losses for members
    assert (reverse.advantage, reverse.auc, reverse.threshold) == (0.0, 0.0, -math.inf)


@given(LOSSES, LOSSES)
def test_every_threshold_and_every_pair(members, others):
    found = membership_advantage(members, others)
    m, o = np.array(members), np.array(others)
    shares = [np.mean(m <= t) - np.mean(o <= t) for t in (-1.0, *m, *o)]
    assert found.advantage == pytest.approx(max(shares))
    assert np.mean(m <= found.threshold) - np.mean(o <= found.threshold) == pytest.approx(found.advantage)
    pairs = (m[:, None] < o).astype(float) + (m[:, None] == o) / 2
    assert found.auc == pytest.approx(pairs.mean())
    delong = pairs.mean(1).var(ddof=1) / len(m) + pairs.mean(0).var(ddof=1) / len(o)
    assert found.auc_error == pytest.approx(math.sqrt(delong), abs=1e-12)
    largest = 2 * found.advantage - found.advantage**2  # of 2 auc - 1: no point of the curve lies further off
    assert max(0, 2 * found.auc - 1) <= largest + 1e-9 <= 1 + 2e-9


def test_errors_and_chance_are_those_of_repeated_draws():
    """Normal losses one apart: advantage 2 Phi(1/2) - 1 and AUC Phi(1/sqrt 2); and where there is nothing to find."""
    rng = np.random.default_rng(0)

    def draw(shift):
        return [membership_advantage(rng.normal(size=300), rng.normal(shift, size=200)) for _ in range(300)]

    apart, alike = draw(1.0), draw(0.0)
    assert np.mean([f.advantage for f in apart]) == pytest.approx(math.erf(0.5 / math.sqrt(2)), abs=0.05)
    assert np.mean([f.auc for f in apart]) == pytest.approx(0.5 + math.erf(0.5) / 2, abs=0.01)
    assert np.std([f.auc for f in apart]) == pytest.approx(np.mean([f.auc_error for f in apart]), rel=0.15)
    assert np.std([f.advantage for f in apart]) == pytest.approx(np.mean([f.error for f in apart]), rel=0.3)
    assert np.mean([f.advantage for f in alike]) == pytest.approx(alike[0].by_chance, rel=0.15)
    assert np.mean([f.auc for f in alike]) == pytest.approx(0.5, abs=0.01)


def noisy_labels():
    """Clients whose labels are drawn at random: what a model knows of a row it can have from that row alone."""
    problem = blobs(num_clients=3, sizes=[40, 30, 40], shape=(12,), width=64, depth=1, features=32)
    rng, data = np.random.default_rng(1), problem.data
    y, test_y = (rng.integers(0, 3, part.shape).astype(np.int32) for part in (data.y, data.test_y))
    return replace(problem, data=replace(data, y=y, test_y=test_y))


def trained(problem, rounds):
    algorithm, on_devices = Local(epochs=20, lr=0.3), place_problem(problem)
    state, _ = advance(on_devices, [(algorithm, 0)], Plan(rounds, eval_every=max(rounds, 1)))
    return algorithm.models(on_devices, state, None)


def test_a_model_that_has_learnt_its_rows_by_heart():
    problem = noisy_labels()
    members, others = row_losses(problem, *trained(problem, 15))
    assert [len(losses) for losses in members] == [40, 30, 40]
    assert [len(losses) for losses in others] == [12, 12, 12]
    found = membership_advantage(np.concatenate(members), np.concatenate(others))
    assert found.advantage > 0.4 > found.by_chance
    assert found.auc - 3 * found.auc_error > 0.6
    before = membership_advantage(*map(np.concatenate, row_losses(problem, *trained(problem, 0))))
    assert abs(before.auc - 0.5) < 3 * before.auc_error
    assert before.advantage < found.advantage - 3 * found.error


@pytest.mark.slow
def test_losses_are_those_of_each_clients_own_rows():
    problem = blobs(num_clients=3, sizes=[5, 9, 7])
    own, shared = trained(problem, 1)
    members, others = row_losses(problem, own, shared, chunk=4)
    for client in range(3):
        params = shared | jax.tree.map(lambda leaf: leaf[client], own)  # noqa: B023
        for losses, part, size in ((members, "", problem.data.size), (others, "test_", problem.data.test_size)):
            x, y = (np.asarray(getattr(problem.data, part + name))[client, : size[client]] for name in ("x", "y"))
            want = optax.softmax_cross_entropy_with_integer_labels(problem.model.apply(params, x), y)
            np.testing.assert_allclose(losses[client], want, rtol=1e-4, atol=1e-5)


def test_a_common_test_set_belongs_to_all_clients():
    problem = blobs(num_clients=3, sizes=[5, 9, 7])
    data = problem.data
    first = {name: np.asarray(getattr(data, name))[:1] for name in ("test_x", "test_y", "test_size")}
    own, shared = trained(problem, 1)
    want = row_losses(problem, own, shared)[1]
    common = row_losses(replace(problem, data=replace(data, **first)), own, shared)[1]
    assert [len(losses) for losses in common] == [12] * 3
    np.testing.assert_allclose(common[0], want[0], rtol=1e-5)
    assert not np.allclose(common[1], want[1])


@pytest.mark.parametrize(
    ("members", "others", "message"),
    [
        ([1.0], [1.0, 2.0], "1 losses of members"),
        ([1.0, 2.0], [], "0 losses of others"),
        ([1.0, math.nan], [1.0, 2.0], "losses of members are NaN"),
    ],
)
def test_bad_losses(members, others, message):
    with pytest.raises(InputError, match=message):
        membership_advantage(members, others)


def test_no_attack_beats_the_bound():
    """Randomised response at epsilon is where the bound is met: the truth with probability e^eps / (1 + e^eps)."""
    for epsilon in (0.0, 0.5, 3.0):
        truth = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert advantage_bound(epsilon, 0.0) == pytest.approx(2 * truth - 1)
    assert advantage_bound(0.0, 0.1) == pytest.approx(0.1)
    assert advantage_bound(1e6, 0.5) == 1.0
    for wrong in ((-0.1, 0.1), (1.0, 1.5), (math.nan, 0.1)):
        with pytest.raises(InputError, match="epsilon must be 0 or more, and delta from 0 to 1"):
            advantage_bound(*wrong)
