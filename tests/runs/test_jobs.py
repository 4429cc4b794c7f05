"""Runs within a time, by several processes: all of it, none of it, a part that goes on later."""

import contextlib
import multiprocessing
import queue
import subprocess
import sys
import time
from dataclasses import replace
from unittest import mock

import jax
import numpy as np
import pytest

from fedlab_lite.cli import main
from fedlab_lite.papers import Item, worth
from fedlab_lite.runs import Settings, jobs, memory, missing, pack, run_all, store
from fedlab_lite.runs.jobs import Program, compute
from fedlab_lite.util import CorruptFileError, InputError, OutputError, files

SMALL = Settings(
    dataset="digits", partition="iid", num_clients=4, train_size=80, test_size=40, num_rounds=2, seeds=(0, 1),
    model_options={"width": 8},
)  # fmt: skip
RUNS = {"a": SMALL, "b": replace(SMALL, model_options={"width": 9})}

SEEDS = 6
TINY = ["-p", "dataset", "textures", "-p", "partition", "iid", "-p", "num_clients", "3", "-p", "num_rounds", "30"]
TINY += [
    "-p",
    "model",
    "mlp",
    "-p",
    "train_size",
    "60",
    "-p",
    "test_size",
    "30",
    "-p",
    "seeds",
    ",".join(map(str, range(SEEDS))),
]


def programs(runs):
    return [Program(runs) for runs in missing(runs)]


@pytest.mark.slow
def test_two_processes_compute_what_one_does():
    outcome = compute(programs(RUNS), jobs=2, minutes=5)
    assert (len(outcome.finished), outcome.begun, outcome.left, outcome.problems) == (4, [], 0, [])
    there = run_all(RUNS)
    again = run_all(RUNS, force=True)
    for name, history in there.items():
        np.testing.assert_array_equal(history.metrics["loss"], again[name].metrics["loss"])
    with pytest.raises(InputError, match="nothing is missing"):
        compute(programs(RUNS), jobs=2)


@pytest.mark.slow
def test_what_is_compiled_first_is_not_compiled_again(monkeypatch, tmp_path):
    cache, original, after = tmp_path / "programs", jobs._share_out, []
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(cache))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: 4)

    def watched(*args):
        problems = original(*args)
        after.append({file.name for file in cache.glob("jit_*-cache")})
        return problems

    monkeypatch.setattr(jobs, "_share_out", watched)
    assert len(compute(programs(RUNS), jobs=1, minutes=5).finished) == 4
    compiled, trained = ({name for name in names if "_round" in name or "evaluate" in name} for names in after)
    assert len(compiled) >= 4
    assert trained == compiled


@pytest.mark.slow
def test_a_time_that_is_too_short_keeps_its_deadline_and_loses_nothing():
    began = time.time()
    with pytest.raises(InputError, match=r"0.01 minutes were over before the first program had made a round"):
        compute(programs(RUNS), jobs=1, minutes=0.01)
    assert time.time() - began < 0.6 + jobs.GRACE + 5
    assert len(missing(RUNS)) == 2


@pytest.mark.slow
def test_a_run_goes_on_after_the_time():
    """A thousand rounds do not end in 20 seconds; the checkpoint is there, is packed, and continues elsewhere."""
    long = {"long": replace(SMALL, num_rounds=100_000, eval_every=100_000, seeds=(0,))}
    outcome = compute(programs(long), jobs=1, minutes=1 / 3)
    assert (outcome.finished, len(outcome.begun), outcome.left) == ([], 1, 1)
    checkpoint = store.load_tree(store.path(outcome.begun[0], "ckpt"))
    assert 0 < checkpoint["progress"]["next"] < 100_000
    (packed,), _ = pack.pack(missing(long)[0], files.runs_dir().parent / "begun.zip")
    store.path(outcome.begun[0], "ckpt").unlink()
    assert pack.merge(packed) == ([f"{outcome.begun[0]}.ckpt"], {})
    assert store.load_tree(store.path(outcome.begun[0], "ckpt"))["progress"]["next"] == checkpoint["progress"]["next"]


@pytest.mark.slow
def test_no_process_outlives_the_command_and_the_next_one_does_the_rest():
    psutil = pytest.importorskip("psutil")
    command = [sys.executable, "-m", "fedlab_lite", "compute", "fig04_mlp", "--jobs", "2", *TINY]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not (done := list(files.runs_dir().glob("*.npz"))):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    assert process.wait(10) != 0
    assert len(workers) >= 2
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    done = list(files.runs_dir().glob("*.npz"))
    assert 0 < len(done) < 2 * SEEDS
    contents = [file.read_bytes() for file in done]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"{2 * SEEDS - len(done)} runs finished, 0 begun, 0 left" in said
    assert [file.read_bytes() for file in done] == contents


@pytest.mark.slow
def test_undecided_claims_first_then_by_time(monkeypatch):
    items = [Item("fedeq", f"{stem}") for stem in ("tab03_accuracy", "fig04_mlp_vs_deq_mlp", "fig07_loss_curves")]
    outcomes = dict(zip(items, ("undecided", "agrees", "undecided"), strict=True))
    monkeypatch.setattr(worth.results, "committed", lambda: {item: {"outcome": outcomes[item]} for item in items})
    of = {item: {"r": replace(SMALL, data_seed=number)} for number, item in enumerate(items)}
    monkeypatch.setattr(worth.presets, "settings", lambda paper, stem, preset: of[Item(paper, stem)])
    found, lacking = worth.programs(items, "laptop", {})
    assert [program.runs[0][1].data_seed for program in found] == [2, 0, 1]  # 15, 220 and 11 minutes at laptop
    assert [program.keep_state for program in found] == [True, False, False]
    assert lacking == []
    with pytest.raises(InputError, match="unknown algorithm of these runs 'ditto'"):
        worth.programs(items, "laptop", {}, only="ditto")


def test_a_data_set_that_is_missing_leaves_out_its_runs_alone(monkeypatch, capsys):
    runs = {"there": SMALL, "not": replace(SMALL, dataset="cifar10"), "nor": replace(SMALL, dataset="cifar10", alpha=2)}
    monkeypatch.setattr(worth.presets, "settings", lambda *item: runs)
    computed, began = [], time.monotonic()

    def instead(programs, **options):
        computed.append(options["began"])
        assert [run[1].dataset for program in programs for run in program.runs] == ["digits", "digits"]
        return jobs.Outcome(["a"])

    monkeypatch.setattr(jobs, "compute", instead)
    command = ["compute", "fig04_mlp", "--minutes", "1"]
    assert main(command) == 1
    assert capsys.readouterr().err.count("cifar10 is not on this machine") == 1
    assert began <= computed[0] <= time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "compute", mock.Mock(side_effect=InputError("the minutes were over")))
        assert main(command) == 2
    said = capsys.readouterr().err
    assert [said.count(words) for words in ("cifar10 is not on this machine", "the minutes were over")] == [1, 1]
    del runs["there"]
    assert main(command) == 2
    assert capsys.readouterr().err.count("cifar10 is not on this machine") == 1
    assert len(computed) == 1


def test_a_damaged_file_in_the_store_leaves_out_its_run_alone(monkeypatch, capsys):
    runs = {seed: replace(SMALL, seeds=(seed,)) for seed in range(2)}
    monkeypatch.setattr(worth.presets, "settings", lambda *item: runs)
    name, *_ = missing({0: runs[0]})[0][0]
    store.path(name, "npz").parent.mkdir(parents=True, exist_ok=True)
    store.path(name, "npz").write_bytes(b"damaged")
    computed = []
    monkeypatch.setattr(jobs, "compute", lambda todo, **_: computed.extend(todo) or jobs.Outcome(["a"]))
    assert main(["compute", "fig04_mlp", "--jobs", "1"]) == 1
    assert [run[2] for program in computed for run in program.runs] == [1]
    assert f"{name}.npz" in capsys.readouterr().err
    assert store.path(name, "npz").read_bytes() == b"damaged"


def test_the_minutes_count_from_the_start_of_the_command(monkeypatch):
    seen, original = [], worth.programs

    def slow(*args, **options):
        seen.append(time.monotonic())
        return original(*args, **options)

    monkeypatch.setattr(worth, "programs", slow)
    monkeypatch.setattr(worth.presets, "settings", lambda *item: RUNS)
    monkeypatch.setattr(jobs, "_share_out", lambda work, programs, jobs, until, environment: seen.append(until) or [])
    assert main(["compute", "fig04_mlp", "--minutes", "1"]) == 2
    assert seen[-1] - 60 <= seen[0]


def test_runs_that_failed_are_an_exit_code(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(worth.presets, "settings", lambda *item: RUNS)
    monkeypatch.setattr(jobs, "_share_out", lambda *args: ["it went wrong"])
    assert main(["compute", "fig04_mlp", "--jobs", "2", "--pack", str(tmp_path / "a.zip")]) == 1
    assert (
        capsys.readouterr().err == "error: it went wrong\nno pack was written: no run has a file that fits into one\n"
    )


def test_what_an_earlier_command_stored_is_packed_as_well(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(worth.presets, "settings", lambda *item: RUNS)
    run_all(RUNS)
    names = sorted(file.name for file in files.runs_dir().iterdir())
    assert main(["compute", "fig04_mlp", "--jobs", "1"]) == 2
    assert "nothing is missing" in capsys.readouterr().err
    assert main(["compute", "fig04_mlp", "--pack", str(tmp_path / "a.zip")]) == 0
    for file in files.runs_dir().iterdir():
        file.unlink()
    assert pack.merge(tmp_path / "a.zip") == (names, {})


def test_a_store_that_cannot_be_written_is_found_before_training(monkeypatch, tmp_path):
    todo = programs(RUNS)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLAB_RUNS", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="cannot write"):
        compute(todo, jobs=2)


def test_what_is_stored_already_is_not_finished_now(monkeypatch):
    """With `force`, a run of the store, or one beside a committed figure, is computed again."""
    todo = programs(RUNS)
    names = [name for program in todo for name, *_ in program.runs]
    run_all(RUNS)
    store.publish(names, files.figures_dir() / "fedeq" / "runs")
    store.path(names[0], "npz").unlink()
    monkeypatch.setattr(jobs, "_share_out", lambda *args: ["it went wrong"])
    outcome = compute(todo, force=True)
    assert (outcome.finished, outcome.begun, outcome.left) == ([], [], 4)
    assert len(list(files.runs_dir().iterdir())) == 3


def exhausted(program):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")


def too_large(program):
    raise memory.DoesNotFit(f"fedavg · mlp · digits takes 9 GB; {memory.ADVICE}")


def unreadable(program):
    raise CorruptFileError("a.ckpt is corrupt")


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("work", [exhausted, too_large, unreadable])
def test_what_went_wrong_names_the_run_once_and_says_what_to_do(work, number):
    context, said = multiprocessing.get_context("spawn"), queue.SimpleQueue()
    jobs._worker(work, [Program([("", SMALL, 0)])], number, context.Value("i", 0), said, time.monotonic() + 60)
    text = said.get_nowait()
    assert text.count("fedavg · mlp · digits") == 1
    assert text.endswith("is corrupt" if work is unreadable else ", or fewer --jobs" if number > 1 else memory.ADVICE)


@pytest.mark.parametrize(("cores", "number", "phases"), [(16, 2, [4, 2]), (16, 8, [8]), (2, 1, [1])])
def test_compilers_have_the_share_and_a_part_of_the_time(monkeypatch, cores, number, phases):
    """Clients are batched by the share of the memory: with another one, it would be another program."""
    calls = []
    monkeypatch.setattr(jobs, "_share_out", lambda *args: calls.append(args) or ["it went wrong"])
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: cores)
    todo = programs({width: replace(SMALL, model_options={"width": width}) for width in (8, 9, 10, 11)})
    began = time.monotonic()
    assert compute(todo, jobs=number, minutes=9).problems == ["it went wrong"]
    assert [found for _, _, found, *_ in calls] == phases
    shares = {environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] for *_, environment in calls}
    assert shares == {f"{jobs.MEMORY / number:.3f}"}
    assert calls[-1][3] - began >= 540
    assert all(until - began < 200 for _, _, _, until, _ in calls[:-1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--minutes", "0"], "'0' is not a number above 0"),
        (["--minutes", "soon"], "'soon' is not a number above 0"),
        (["--jobs", "0"], "'0' is not a whole number of at least 1"),
        (["--only", "fedavgg"], "did you mean 'fedavg'"),
        (["--pack", "runs.tar"], "a pack is a file <name>.zip"),
    ],
)
def test_bad_arguments(arguments, words, capsys):
    with contextlib.suppress(SystemExit):  # of argparse
        assert main(["compute", "fedeq/fig04", *arguments]) == 2
    assert words in capsys.readouterr().err
