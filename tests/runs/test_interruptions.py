"""Interrupted runs go on to the bit; damaged files are named and kept; two at once agree."""

import random
import zipfile
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers import blobs
from kill_and_resume import kill_and_resume
from recorded_runs import Killed, all_of, fedavg, interrupted, same

from fedlab_lite.engine import Progress, training
from fedlab_lite.runs import batch, missing, run, store
from fedlab_lite.runs.names import run_name
from fedlab_lite.runs.runner import final_state
from fedlab_lite.util import CorruptFileError, OutputError, files

pytestmark = pytest.mark.usefixtures("small_problem")


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
    monkeypatch.setattr(training, "describe_machine", lambda: MACHINE)
    got = all_of(grid)
    for history in got:  # all that had a part is listed
        assert history.trajectories_at_once == 2
        assert history.device == f"1 x H200, {want[0].device}"
        assert history.versions["jax"] == f"{want[0].versions['jax']}, 99.0"
    assert not list(files.runs_dir().glob("*.ckpt"))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.metrics["loss"], b.metrics["loss"], atol=1e-5)


MACHINE = {"device": "1 x H200", "precision": "float32", "versions": {"jax": "99.0"}}


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


def test_checkpoints_are_written_by_the_clock(monkeypatch):
    with monkeypatch.context() as patch:
        written = []
        patch.setattr(store, "save_tree", lambda file, tree: written.append(tree["progress"]["next"]))
        run(fedavg(), checkpoint_seconds=1e9)
        assert written == []
        run(fedavg(), force=True, checkpoint_seconds=0)
        assert written == [1, 2, 3, 4, 5] * 2  # none after the last round


def test_a_run_that_is_computed_again_stays_until_there_is_a_round_in_its_place(monkeypatch):
    want = run(fedavg())
    stored = sorted(files.runs_dir().iterdir())
    missing({"": fedavg()}, force=True)
    original, at = training._round, [0]

    def stop(*args):
        if args[3] == at[0]:
            raise Killed
        return original(*args)

    monkeypatch.setattr(training, "_round", stop)
    with pytest.raises(Killed):
        run(fedavg(), force=True, checkpoint_seconds=0)
    assert sorted(files.runs_dir().iterdir()) == stored
    at[0] = 3
    with pytest.raises(Killed):
        run(fedavg(), force=True, checkpoint_seconds=0)
    assert sorted(file.suffix for file in files.runs_dir().iterdir()) == [".ckpt", ".npz"]  # the second seed's waits
    at[0] = -1
    assert same(run(fedavg()), want)


@pytest.mark.parametrize(
    ("times", "writes", "ends"),
    [
        ([40, 41, 42, 43], [], 0),
        ([40, 41, 62, 63, 80], [80], 5),  # a round with a judgement takes 21 seconds
        ([60, 61, 70], [60], 0),  # the first has compilation in it: the second may be as long, so the first is kept
        ([101], [101], 1),
    ],
)
def test_a_deadline_goes_by_the_longest_round_but_the_first(monkeypatch, times, writes, ends):
    clock, written = [0.0], []
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(store, "save_tree", lambda file, tree: written.append(clock[0]))
    write = batch._Checkpoints(["a"], 1e9, lambda headline: None, 100.0, "accuracy", False)
    ended = 0
    for number, clock[0] in enumerate(times, start=1):
        try:
            write({}, [Progress(metrics={"accuracy": 0.5})])
        except batch.OutOfTime:
            ended = number
            break
    assert (written, ended) == (writes, ends)


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
