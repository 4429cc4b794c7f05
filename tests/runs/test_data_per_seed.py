"""Seeds that draw their own data and partition: names, bits, states, and what is read back."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from recorded_runs import same

from fedlab_lite.papers import verdicts
from fedlab_lite.runs import Settings, build_problem, final_state, measured, run, run_names, store
from fedlab_lite.util import InputError

SMALL = {"dataset": "digits", "partition": "by_label", "num_clients": 5, "train_size": 120, "test_size": 60}
OWN = Settings(**SMALL, model_options={"width": 8}, num_rounds=2, seeds=(0, 1, 2), data_per_seed=True)


def test_a_seeds_run_is_that_of_its_own_data_seed(count_rounds):
    """So it is stored once: seed 1 with data of its own is the run with data_seed 1."""
    together = run(OWN)
    assert count_rounds == [0, 1] * 3
    for index, seed in enumerate(OWN.seeds):
        alone = run(replace(OWN, data_per_seed=False, data_seed=seed, seeds=(seed,)))
        np.testing.assert_array_equal(alone.metrics["accuracy"][0], together.metrics["accuracy"][index])
        assert run_names(alone) == [run_names(together)[index]]
    assert len(count_rounds) == 6
    assert len(set(together.data_fingerprint.split())) == 3
    assert all(store.find(name) for name in run_names(together))
    assert same(run(OWN), together)
    for some in ([2], [2, 0]):  # a part of the seeds keeps their names
        assert run_names(together.with_seeds(some)) == [run_names(together)[seed] for seed in some]


def test_the_first_seeds_data_are_those_of_the_data_seed():
    fixed = replace(OWN, data_per_seed=False)
    assert run(fixed).data_fingerprint == run(OWN).data_fingerprint.split()[0]
    with pytest.raises(InputError, match=r"\(data_per_seed\); use one seed, or settings.of_seed\(seed\)"):
        build_problem(OWN)
    moved = build_problem(replace(OWN, data_seed=5, seeds=(2,))).data.fingerprint()
    assert moved == build_problem(replace(fixed, data_seed=7)).data.fingerprint()


def test_the_majority_baseline_is_the_mean_over_the_seeds():
    """Constants of the stacked history are means, as its accuracies are."""
    parts = [run(replace(OWN.of_seed(seed), seeds=(seed,))) for seed in OWN.seeds]
    assert run(OWN).constant == pytest.approx(np.mean([part.constant for part in parts]), abs=1e-7)


def test_final_states_are_asked_for_one_seed_at_a_time():
    with pytest.raises(InputError, match=r"every seed has its own data \(data_per_seed\); use one seed, or"):
        final_state(OWN)
    problem, state = final_state(replace(OWN, seeds=(1,)))
    assert problem.data.fingerprint() == build_problem(OWN.of_seed(1)).data.fingerprint()
    assert jax.tree.leaves(state)[0].shape[0] == 1
    sizes = measured(OWN, "rows", lambda problem, state: {"rows": problem.data.x[:, 0].sum()})["rows"]
    assert len(set(sizes.tolist())) == 3  # each of its own rows


def test_a_data_seed_that_jax_cannot_hold():
    with pytest.raises(InputError, match=r"data_seed 2147483647 \+ seed 1 is above 2\^31 - 1; lower one of them"):
        Settings(data_seed=2**31 - 1, data_per_seed=True, seeds=(0, 1))


def test_seeds_of_one_partition_decide_nothing_of_what_has_no_error_over_clients():
    """Their spread leaves out the partition's part. With partitions of their own, or that error, they decide."""
    values, fixed, own = [0.8, 0.81, 0.79], run(replace(OWN, data_per_seed=False)), run(OWN)
    own, fixed = (replace(each, constant=0.0, own_constant=0.0) for each in (own, fixed))
    found = {
        each: verdicts.observed("slope", values, 0.5, runs={"a": each_run})
        for each, each_run in (("own", own), ("one", fixed))
    }
    assert found["own"].outcome == "agrees"
    assert found["one"].outcome == "undecided"
    assert found["one"].reason == (
        "slope: 0.8 ± 0.00577 (3 seeds of one partition, more than 0.5 asked), and another partition may differ; "
        "0 of 1 decided"
    )
    known = verdicts.observed("slope", values, 0.5, runs={"a": fixed}, error=0.01, freedom=9)
    assert known.outcome == "agrees"
