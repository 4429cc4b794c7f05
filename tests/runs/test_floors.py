"""Floors are what a run has to compute: they grow with rounds and rows, and unequal clients are padded."""

from dataclasses import replace

import pytest

from fedlab_lite.cli import main
from fedlab_lite.papers import Item, floors, presets
from fedlab_lite.runs import Settings
from fedlab_lite.runs.floors import floor, minutes

SMALL = Settings(
    dataset="digits", partition="iid", num_clients=4, train_size=160, test_size=40, num_rounds=8, eval_every=8,
    model_options={"width": 8, "depth": 1}, algorithm_options={"epochs": 2, "batch_size": 10},
)  # fmt: skip


@pytest.mark.slow
def test_by_hand():
    """4 clients, 2 epochs of 4 steps of 10 rows; two judgements of 10 rows each; products of the MLP's layers."""
    forward = 2 * (784 * 8 + 8 * 128 + 128 * 10)
    work = floor(SMALL)
    training = 8 * 4 * 2 * 40 * (3 * forward - 2 * 784 * 8)  # no gradient for the input
    assert training <= work.flops <= 1.15 * training + 2 * 4 * 100 * forward
    assert work.flops == pytest.approx(work.useful)
    assert work.steps == 8 * 2 * 4 + 2


@pytest.mark.slow
def test_a_common_test_set_is_judged_by_every_client_and_in_groups_too():
    """Each of 4 clients takes one step on all 40 rows; together one step a judgement, padding none."""
    work, own = floor(replace(SMALL, common_test=True)), floor(SMALL)
    assert work.steps == own.steps == 8 * 2 * 4 + 2
    assert work.flops == pytest.approx(work.useful)


def test_more_rounds_judgements_and_step_sizes():
    once, twice = floor(SMALL), floor(replace(SMALL, num_rounds=16, eval_every=16))
    assert 1.9 < twice.flops / once.flops < 2
    assert floor(replace(SMALL, eval_every=1)).flops > once.flops
    assert floor(replace(SMALL, algorithm_options={"epochs": 2, "batch_size": 10, "lr": 0.5})) == once
    assert minutes(once._replace(flops=1.2e15), 20) == pytest.approx(1)


@pytest.mark.slow
def test_unequal_clients_are_padded():
    work = floor(replace(SMALL, partition="dirichlet", alpha=0.1, num_clients=8, train_size=400, test_size=80))
    assert 1 < work.flops / work.useful < 3


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["cifar100", "harbox"])
def test_data_that_are_not_here(dataset):
    """Arrays of their form stand in: 100 clients of 500 pictures, in the published sizes."""
    model = {"cifar100": "cnn5", "harbox": "dnn"}[dataset]
    settings = replace(SMALL, dataset=dataset, model=model, model_options={}, train_size=400, test_size=40)
    assert floor(settings).flops > 1e9


def test_an_item_without_runs_has_no_floor():
    assert floors.count(Item("fedeq", "tab02_parameters")) is None
    assert floors.fresh(Item("fedeq", "tab02_parameters"))


def test_counted_written_and_read(monkeypatch, tmp_path):
    monkeypatch.setattr(floors, "FILE", tmp_path / "floors.json")
    item = Item("fedeq", "fig04_mlp_vs_deq_mlp")
    monkeypatch.setattr(presets, "settings", lambda *_, **__: {"a": SMALL, "b": replace(SMALL, seeds=(0, 1))})
    assert not floors.fresh(item)
    floors.write([item])
    found = floors.stored(item)
    assert floors.fresh(item)
    assert found.trajectories == 3
    assert found.pflop == pytest.approx(3 * floor(SMALL).flops / 1e15, rel=0.01)
    assert found.minutes(20) == pytest.approx(found.pflop / 20 / 60 * 1000)
    assert found.terabytes == pytest.approx(3 * floor(SMALL).bytes / 1e12, rel=0.01)
    assert found.memory == pytest.approx(floor(SMALL).memory / 1e9, rel=0.01)  # seeds one after the other
    monkeypatch.setattr(presets, "settings", lambda *_, **__: {"a": replace(SMALL, num_rounds=9)})
    assert floors.stored(item) is None  # of other settings


def test_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(floors, "FILE", tmp_path / "floors.json")
    item = Item("fedeq", "fig04_mlp_vs_deq_mlp")
    monkeypatch.setattr(presets, "settings", lambda *_, **__: {"a": SMALL})
    assert main(["list", str(item), "--floors"]) == 0
    assert f"not counted with their present settings: {item}; --write counts them" in capsys.readouterr().err
    assert main(["list", str(item), "--floors", "--write", "--tflops", "40"]) == 0
    said = capsys.readouterr()
    assert "minutes at 40 TFLOP/s" in said.out
    assert not said.err
