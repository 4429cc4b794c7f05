"""save_figure: the fields, the bytes, where results go, and what it refuses."""

import json
import os
import re
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from helpers import drawn, history
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite.papers import Item, presets, report, results, scope, variants
from fedlab_lite.papers.outcome import Verdict
from fedlab_lite.plots import style
from fedlab_lite.runs import run_names, store
from fedlab_lite.util import CorruptFileError, InputError, OutputError, files

mpl.use("agg")
ITEM = Item("fedeq", "fig04_mlp_vs_deq_mlp")
RUNS = {"mlp": history([[0.1, 0.5, 0.6], [0.1, 0.7, 0.8]]), "fedeq": history([[0.2, 0.6, 0.6], [0.2, 0.6, 0.6]])}
YES = Verdict("agrees", "both learn")


@pytest.fixture(autouse=True)
def committing(monkeypatch):
    """As `run --commit` has it."""
    monkeypatch.setenv("FEDLAB_COMMIT", "1")


def save(runs=RUNS, **changes):
    options = {
        "verdict": YES,
        "preset": "quick",
        "data_source": "made by a test",
        "parameters": {"num_rounds": None, "lr": np.float32(0.1)},
        "seeds": (0, 1),
        "metrics": style.summary(runs, last=1, scale=100),
        "published": [{"name": "mlp", "value": 70, "where": "Fig. 4"}],
        "departures": ["smaller"],
        "also": {"a question of ours": Verdict("undecided", "not asked")},
        "histories": runs,
    }
    return results.save_figure(drawn(runs), *ITEM, **options | changes)


def three(file):
    return [file.with_suffix(suffix) for suffix in (".svg", ".png", ".json")]


def test_the_json_has_the_fields_of_a_result():
    saved = save()
    assert saved == files.figures_dir() / "fedeq" / f"{ITEM[1]}.json"
    assert json.loads(saved.read_text()) == {
        "paper": "fedeq",
        "item": ITEM[1],
        "claim": presets.item(*ITEM)["claim"],
        "quote": presets.item(*ITEM)["quote"],
        "where": presets.item(*ITEM)["where"],
        "outcome": "agrees",
        "word": "seen",
        "scope": "stand-in",
        "distance": scope.distance(ITEM, [run.settings for run in RUNS.values()]),
        "comparisons": {},
        "readings": {},
        "also": {"a question of ours": {"outcome": "undecided", "reason": "not asked"}},
        "reason": "both learn",
        "preset": "quick",
        "data_source": "made by a test",
        "parameters": {"num_rounds": None, "lr": 0.1},
        "seeds": [0, 1],
        "metrics": {"mlp": {"mean": 70.0, "std": 14.1421, "n": 2}, "fedeq": {"mean": 60.0, "std": 0.0, "n": 2}},
        "shown": [],
        "rivals": [],
        "constant_answer": {"mlp": None, "fedeq": None},
        "published": [{"name": "mlp", "value": 70, "where": "Fig. 4"}],
        "departures": ["smaller"],
        "notebook_hash": results.notebook_hash(ITEM),
        "provenance": {
            "versions": {"jax": "1", "fedlab_lite": "0.1.0"},
            "device": "1 x abacus",
            "precision": "float32",
            "seconds": 4.0,
            "package_version": "0.1.0",
        },
    }
    assert saved.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in saved.with_suffix(".svg").read_bytes()


def test_the_same_result_gives_the_same_bytes():
    first = [path.read_bytes() for path in three(save())]
    slower = {name: history(run.metrics["accuracy"], seconds=99.0) for name, run in RUNS.items()}
    again = [path.read_bytes() for path in three(save(slower))]
    assert first == again
    assert b"Date" not in first[0]
    assert f"v{mpl.__version__}".encode() not in first[0]
    assert b"Software" not in first[1]


def test_another_result_has_its_own_provenance():
    save()
    other = {name: history(run.metrics["accuracy"] / 2, seconds=99.0) for name, run in RUNS.items()}
    assert json.loads(save(other).read_text())["provenance"]["seconds"] == 198.0


def test_floats_have_six_digits_and_nan_is_null():
    metrics = {"a": {"mean": 1 / 3, "std": float("nan"), "n": 1}, "b": {"mean": 123456789.0, "std": 1e-9 / 3, "n": 1}}
    content = json.loads(save(metrics=metrics).read_text())
    assert content["metrics"]["a"] == {"mean": 0.333333, "std": None, "n": 1}
    assert content["metrics"]["b"] == {"mean": 123457000.0, "std": 3.33333e-10, "n": 1}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_six_digits_are_stable(value):
    once = results._plain(value)
    assert results._plain(once) == once
    assert abs(once - value) <= 1e-5 * abs(value)


@pytest.mark.parametrize(("first", "second"), [("laptop", "quick"), ("paper", "laptop"), ("paper", "quick")])
def test_a_larger_preset_is_never_replaced(first, second, capsys):
    large = [path.read_bytes() for path in three(save(preset=first))]
    small = save(preset=second)
    assert small == files.drafts_dir() / second / "fedeq" / f"{ITEM[1]}.json"
    assert f"larger preset '{first}'" in capsys.readouterr().out
    assert [(files.figures_dir() / "fedeq" / path.name).read_bytes() for path in three(small)] == large
    assert (results.committed()[ITEM]["preset"], results.drafts()[ITEM]["preset"]) == (first, second)
    again = save(preset=first)
    assert again.parent == files.figures_dir() / "fedeq"


def test_a_larger_preset_replaces_a_smaller_one():
    save(preset="quick")
    saved = save(preset="laptop")
    assert saved.parent == files.figures_dir() / "fedeq"
    assert results.read_result(saved)["preset"] == "laptop"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": Verdict("true", "")}, "unknown outcome 'true'"),
        ({"shown": ["mpl"]}, "unknown metric to show 'mpl'; did you mean 'mlp'"),
        ({"preset": "quikc"}, "unknown preset 'quikc'; did you mean 'quick'"),
        ({"metrics": {"mlp": {"mean": 1.0}}}, "metric 'mlp' needs exactly mean, std and n"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        save(**changes)
    assert not files.figures_dir().exists()


def test_what_is_not_said_comes_from_the_runs_and_the_paper():
    saved = results.save_figure(
        drawn(RUNS), *ITEM, verdict=YES, preset="quick", metrics=style.summary(RUNS), histories=RUNS
    )  # fmt: skip
    result = results.read_result(saved)
    assert result["claim"] == presets.item(*ITEM)["claim"]
    assert (result["data_source"], result["seeds"], result["parameters"]) == ("made by a test", [0, 1], {})
    assert [row["name"] for row in result["published"]] == ["accuracy_difference", "size_reduction_percent"]


def test_unknown_items():
    with pytest.raises(InputError, match="did you mean 'fig04_mlp_vs_deq_mlp'"):
        results.save_figure(
            drawn(RUNS), "fedeq", "fig04_mlp_vs_deq", verdict=YES, preset="quick", data_source="", parameters={},
            seeds=[0], metrics={},
        )  # fmt: skip


@pytest.mark.parametrize(("paper", "item"), [("../../x", "y"), ("fedeq", "../../x"), ("fedeq", "/tmp/x"), ("", "")])
def test_nothing_is_written_outside_the_figures(folders, paper, item):
    with pytest.raises(InputError, match=r"unknown (paper|table)"):
        results.save_figure(drawn(RUNS), paper, item, verdict=YES, preset="quick", metrics={}, histories=RUNS)
    assert list(folders.iterdir()) == []


def test_figures_folder_that_cannot_be_written(folders):
    (folders / "figures").write_text("a file, not a folder")
    with pytest.raises(OutputError, match=r"cannot write .*FEDLAB_"):
        save()
    assert (folders / "figures").read_text() == "a file, not a folder"


def test_read_only_figures_folder(monkeypatch):
    """Root may write anywhere, so the refusal is simulated where the system would make it."""
    before = [path.read_bytes() for path in three(save())]

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(OutputError, match="Read-only file system"):
        save(departures=["another"])
    folder = files.figures_dir() / "fedeq"
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".png", ".svg"]
    assert [(folder / f"{ITEM[1]}.{kind}").read_bytes() for kind in ("svg", "png", "json")] == before


def test_a_damaged_result_is_named():
    file = save()
    file.write_text("{")
    with pytest.raises(CorruptFileError, match=f"{ITEM[1]}.json is not the JSON"):
        save()


def test_without_runs_the_provenance_is_this_machine():
    provenance = results.read_result(save(histories=None))["provenance"]
    assert provenance["seconds"] is None
    assert "jax" in provenance["versions"]


def test_runs_of_another_precision_are_named():
    """A column where all have the same is named once; the page says it in display names."""

    names = {"cifar10/fedavg": "tf32", "cifar10/fedrep": "tf32", "digits/fedavg": "tf32", "digits/fedrep": "float32"}
    result = results.read_result(save({name: replace(RUNS["mlp"], precision=each) for name, each in names.items()}))
    by = {"tf32": ["cifar10", "digits/fedavg"], "float32": ["digits/fedrep"]}
    assert result["provenance"]["by_precision"] == by
    page = report.page(ITEM.paper, {ITEM: result})
    (line,) = [line for line in page.splitlines() if "Matrix products" in line]
    assert "Matrix products: float32 (FedRep (digits)), tf32 (CIFAR-10; FedAvg (digits))." in line
    assert "matrix products are float32 in FedRep (digits), and tf32 in all others" in result["departures"]
    assert "by_precision" not in results.read_result(save())["provenance"]


def test_runs_that_diverged_are_departures():
    runs = {f"cifar10/{name}": RUNS["mlp"] for name in ("fedavg", "fedrep")}
    assert not [line for line in results.read_result(save(runs))["departures"] if "diverged" in line]
    runs["cifar10/fedrep"] = replace(RUNS["mlp"], diverged=(False, True))
    assert "diverged: FedRep (CIFAR-10)" in results.read_result(save(runs))["departures"]


def test_one_seed_has_no_spread():
    alone = {"mlp": history(RUNS["mlp"].metrics["accuracy"][:1], seeds=(0,))}
    saved = save(alone, seeds=(0,))
    assert json.loads(saved.read_text())["metrics"] == {"mlp": {"mean": 60.0, "std": None, "n": 1}}
    assert report.numbers(results.read_result(saved)) == [("mlp", "60", "70")]


def test_stored_runs_are_kept_beside_the_figure():
    """Those behind a figure are copied; when it is made of others, the old ones go, unless another figure has them."""
    runs = {}
    for name, lr in (("one", 0.1), ("two", 0.2)):
        runs[name] = history([[0.1, 0.5], [0.2, 0.6]], algorithm_options={"lr": lr})
        for index, run_name in enumerate(run_names(runs[name])):
            part = replace(runs[name], seeds=(index,), diverged=(False,), metrics={}, client_curves=np.zeros((1, 2, 1)))
            store.save_history(run_name, part)
    kept = files.figures_dir() / "fedeq" / "runs"

    def lie():
        return {file.stem for file in kept.iterdir()}

    both = save({"one": runs["one"], "two": runs["two"]}, histories=runs)
    assert lie() == {*run_names(runs["one"]), *run_names(runs["two"])}
    assert json.loads(both.read_text())["runs"] == sorted(lie())
    save({"one": runs["one"]}, histories={"one": runs["one"]})
    assert lie() == {*run_names(runs["one"])}


def test_one_result_of_a_paper_is_saved_at_a_time(monkeypatch):
    """Else two notebooks at once would remove each other's runs."""
    fcntl = pytest.importorskip("fcntl")
    seen = []

    def is_locked():
        handle = os.open(files.figures_dir() / "fedeq", os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    for name in ("read_result", "_keep_runs"):
        monkeypatch.setattr(results, name, lambda *args, name=name: seen.append((name, is_locked())))
    monkeypatch.setattr(results, "_home", lambda *args: (files.figures_dir() / "fedeq", ""))
    save()
    assert seen == [("read_result", True), ("_keep_runs", True)]
    assert not is_locked()


def test_without_commit_nothing_is_written_to_figures(monkeypatch):
    monkeypatch.delenv("FEDLAB_COMMIT")
    saved = save(preset="paper")
    assert saved == files.drafts_dir() / "paper" / "fedeq" / f"{ITEM.stem}.json"
    assert [path.name for path in files.figures_dir().iterdir()] == ["drafts"]


def test_names_of_runs_with_changed_parameters():
    """Safe as file names, readable where they can be, and different for different values."""
    changes = [{}, {"rho": 0.1}, {"rho": 0.2}, {"lr": 0.1, "rho": 0.1}, {"seeds": (0, 1)}, {"graph": ""}]
    changes += [{"dataset": f"npz:{name}"} for name in ("a/b", "a b", "ä", "../..")]
    changes += [{"budgets": (1,) * n} for n in (50, 51)]
    names = [variants.name_of("fig04", each) for each in changes]
    assert names[:4] == ["fig04", "fig04,rho=0.1", "fig04,rho=0.2", "fig04,lr=0.1,rho=0.1"]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w.,=+-]+", name, re.ASCII) and len(name) < 70 for name in names)
    assert variants.name_of("fig04", {"rho": 1, "lr": 2}) == variants.name_of("fig04", {"lr": 2, "rho": 1})


def test_drafts_have_a_row_for_each_name(monkeypatch):
    monkeypatch.delenv("FEDLAB_COMMIT")
    plain = save()
    monkeypatch.setenv(variants.CHANGED, '{"rho": 0.1, "seeds": [0, 1]}')
    other = save(preset="laptop")
    assert other.name == f"{ITEM.stem},rho=0.1,seeds=0+1.json"
    assert "changed" not in results.read_result(plain)
    assert results.read_result(other)["changed"] == {"rho": 0.1, "seeds": [0, 1]}
    first, second = report.lines(results.drafts())
    assert first.split()[:2] == [str(ITEM), "quick"]
    assert second.split()[:2] == [str(ITEM), "laptop"]
    assert second.endswith("with rho=0.1, seeds=0+1: both learn")


def test_own_runs_follow_the_committed_result(monkeypatch):
    save(preset="laptop")
    monkeypatch.delenv("FEDLAB_COMMIT")
    save()
    first, second = report.printed("fedeq")
    assert first.split()[:2] == [str(ITEM), "laptop"]
    assert "own run" not in first
    assert second.split()[:2] == [str(ITEM), "quick"]
    assert second.endswith("  own run: both learn")
    assert report.printed(own=True) == [second.replace("own run: ", "")]
    with pytest.raises(InputError, match="no results of deprl yet; `fedlab run deprl`"):
        report.printed("deprl")


def test_the_verdict_stands_on_the_figure():
    assert "laptop · stand-in · agrees here" not in [
        text.get_text() for text in drawn(RUNS).texts
    ]  # nor does the stamp stay there
    verdicts = [Verdict(kind, "why") for kind in ("agrees", "undecided")]
    first, other = (save(preset="laptop", verdict=each).with_suffix(".png").read_bytes() for each in verdicts)
    assert first != other


def test_a_failure_leaves_no_other_verdict(monkeypatch):
    """Not in the draft; what is committed is an older result, whose hash tells."""
    committed = save().read_bytes()
    monkeypatch.delenv("FEDLAB_COMMIT")
    draft = save()
    assert results.save_failure(ITEM, "quick", {"lr": float("nan")}, "ValueError: no") == draft
    result = results.read_result(draft)
    assert (result["outcome"], result["reason"]) == ("undecided", "the notebook failed: ValueError: no")
    assert result["metrics"] == {}
    assert (files.figures_dir() / "fedeq" / f"{ITEM.stem}.json").read_bytes() == committed


def test_what_is_older_than_its_notebook_says_so():
    file = save()
    assert not results.is_stale(results.read_result(file))
    results.mark_stale(ITEM)
    assert "stale" not in results.read_result(file)
    file.write_text(json.dumps(results.read_result(file) | {"notebook_hash": "another"}))
    results.mark_stale(ITEM)
    result = results.read_result(file)
    assert (result["stale"], result["outcome"], result["word"]) == (True, "undecided", "undecided")
