"""The store: finished runs are read back, states are kept on demand, and runs from elsewhere are shown."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_runs import fedavg, recorder, same

from fedlab_lite.runs import measured, run, runner, store
from fedlab_lite.runs.runner import final_state
from fedlab_lite.util import CorruptFileError, MissingDataError, NotStoredError, files

pytestmark = pytest.mark.usefixtures("small_problem")


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


def test_what_was_measured_of_a_committed_run_is_committed_too():
    """The run itself lies beside the figures alone; a number that was measured again takes the place of the old one."""
    (name, _), home = runner.run_names(run(fedavg())), files.figures_dir() / "fedeq" / "runs"
    store.publish([name], home)
    store.path(name, "npz").unlink()
    for seconds in (1.0, 2.0):
        store.save_arrays(store.path(name, "seconds_of_1.npz"), {"seconds": np.array([seconds])}, {})
        assert len(store.publish([name], home)) == 2
        assert store.load_arrays(home / f"{name}.seconds_of_1.npz")[0]["seconds"] == [seconds]


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
