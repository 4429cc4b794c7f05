"""`fedlab runs prune`: what is listed, what is asked, what stays."""

import json
import os

import pytest
from helpers import recorded

from fedlab_lite.cli import main
from fedlab_lite.papers import Item
from fedlab_lite.runs import Settings, run, run_names, store
from fedlab_lite.util import files

NEEDED = {"run1.npz", "run1.fit.npz", "new.ckpt", "readme.txt", ".hidden.npz"}
OLD = {"a.ckpt", "run1.state", "b.npz.corrupt", "b.npz", "b.curves.npz"}


@pytest.fixture
def runs():
    folder = files.runs_dir()
    folder.mkdir()
    for name in NEEDED | OLD:
        (folder / name).write_bytes(b"1234")
        if name != "new.ckpt":
            os.utime(folder / name, (0, 0))
    figure = files.figures_dir() / "fedeq" / "fig04_mlp_vs_deq_mlp.json"
    figure.parent.mkdir(parents=True)
    result = recorded(Item("fedeq", figure.stem), "laptop", runs=["run1"])
    figure.write_text(json.dumps(result), encoding="utf-8")
    return folder


def left(folder):
    return {file.name for file in folder.iterdir()}


@pytest.mark.parametrize(("options", "answer", "stays"), [
    (["--dry-run"], "y", OLD),
    ([], "n", OLD),
    ([], None, OLD),
    ([], "y", set()),
    (["--yes"], None, set()),
])  # fmt: skip
def test_nothing_goes_without_being_named_and_agreed_to(runs, monkeypatch, capsys, options, answer, stays):
    def said(question):
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", said)
    assert main(["runs", "prune", *options]) == 0
    assert left(runs) == NEEDED | stays
    out = capsys.readouterr().out
    assert all(str(runs / name) in out for name in OLD)
    assert "2 finished runs that no committed figure needs: 0.0 MB" in out
    assert ("removed" in out) == (not stays)


def test_each_kind_is_asked_for(runs, monkeypatch):
    answers = iter(["y", "n", "y", "n"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    assert main(["runs", "prune"]) == 0
    assert left(runs) == NEEDED | {"run1.state", "b.npz", "b.curves.npz"}


def test_a_run_is_shown_with_what_it_is(capsys):
    history = run(Settings(num_clients=4, num_rounds=1, dataset="digits", partition="iid", train_size=80, test_size=80))
    (name,) = run_names(history)
    os.utime(store.path(name, "npz"), (0, 0))
    own = files.drafts_dir() / "quick" / "fedeq" / "fig05_rho.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(recorded(Item("fedeq", own.stem), "quick", runs=[name])), encoding="utf-8")
    assert main(["runs", "prune", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "(History(fedavg · mlp · digits: 1 round, seed 0, accuracy " in out
    assert "; own figure fedeq/fig05_rho)" in out
    assert "what was changed within the last hour stays" in out


def test_no_store_and_no_pack(capsys):
    assert main(["runs", "prune"]) == 0
    assert main(["runs", "merge"]) == 2
    assert "no pack to merge" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["merge", "a.zip", "--dry-run"], "merge` takes no --dry-run"),
        (["merge", "a.zip", "--yes", "--dry-run"], "merge` takes no --dry-run, --yes"),
        (["prune", "a.zip"], "prune` takes no a.zip"),
    ],
)
def test_options_of_the_other_action(capsys, arguments, words):
    assert main(["runs", *arguments]) == 2
    assert words in capsys.readouterr().err
