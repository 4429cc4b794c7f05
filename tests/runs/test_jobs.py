"""Runs within a time, by several processes: all of it, none of it, a part that goes on later."""

import contextlib
import time
from dataclasses import replace

import numpy as np
import pytest

from fedlab_lite.cli import main
from fedlab_lite.papers import Item, worth
from fedlab_lite.runs import Settings, jobs, missing, pack, run_all, store
from fedlab_lite.runs.jobs import Program, compute
from fedlab_lite.util import InputError, files

SMALL = Settings(
    dataset="digits", partition="iid", num_clients=4, train_size=80, test_size=40, num_rounds=2, seeds=(0, 1),
    model_options={"width": 8},
)  # fmt: skip
RUNS = {"a": SMALL, "b": replace(SMALL, model_options={"width": 9})}


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
