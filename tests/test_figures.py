"""save_figure: the fields, the bytes, the presets, and what it refuses."""

import json
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite import figures, files, report, store
from fedlab_lite.errors import CorruptFileError, InputError, OutputError
from fedlab_lite.experiment import run_names
from fedlab_lite.history import History
from fedlab_lite.settings import Settings

mpl.use("agg")
ITEM = ("fedeq", "fig04_mlp_vs_deq_mlp")


def history(values, seeds=(0, 1), seconds=2.0, **settings) -> History:
    values = np.asarray(values, np.float32)
    return History(
        seeds=seeds,
        num_rounds=values.shape[1] - 1,
        about={"dataset": "digits", "model": "mlp", "algorithm": "fedavg"},
        settings=Settings(num_rounds=values.shape[1] - 1, seeds=seeds, **settings),
        rounds=np.arange(values.shape[1]),
        metrics={"accuracy": values},
        client_curves=values[:, :, None],
        diverged=(False, False),
        message_bytes={"up": 4, "down": 4},
        num_params={"representation": 1, "head": 1},
        seconds=seconds,
        data_source="made by a test",
        data_fingerprint="0",
        device="1 x abacus",
        versions={"jax": "1", "fedlab_lite": "0.1.0"},
    )


RUNS = {"mlp": history([[0.1, 0.5, 0.6], [0.1, 0.7, 0.8]]), "fedeq": history([[0.2, 0.6, 0.6], [0.2, 0.6, 0.6]])}


def draw(runs=RUNS):
    import matplotlib.pyplot as plt

    figures.use_style()
    fig, ax = plt.subplots()
    figures.curves(runs, ax=ax, scale=100)
    plt.close(fig)
    return fig


def save(runs=RUNS, **changes):
    options = {
        "claim": "both learn",
        "holds": True,
        "preset": "quick",
        "data_source": "made by a test",
        "parameters": {"num_rounds": None, "lr": np.float32(0.1)},
        "seeds": (0, 1),
        "metrics": figures.summary(runs, last=1, scale=100),
        "published": [{"name": "mlp", "value": 70, "where": "Fig. 4"}],
        "departures": ["smaller"],
        "histories": runs,
    }
    return figures.save_figure(draw(runs), *ITEM, **options | changes)


def test_the_json_has_the_fields_of_a_result():
    saved = save()
    assert saved.json == files.figures_dir() / "fedeq" / f"{ITEM[1]}.json"
    assert json.loads(saved.json.read_text()) == {
        "paper": "fedeq",
        "item": ITEM[1],
        "claim": "both learn",
        "holds": True,
        "preset": "quick",
        "data_source": "made by a test",
        "parameters": {"num_rounds": None, "lr": 0.1},
        "seeds": [0, 1],
        "metrics": {"mlp": {"mean": 70.0, "std": 14.1421, "n": 2}, "fedeq": {"mean": 60.0, "std": 0.0, "n": 2}},
        "published": [{"name": "mlp", "value": 70, "where": "Fig. 4"}],
        "departures": ["smaller"],
        "provenance": {
            "versions": {"jax": "1", "fedlab_lite": "0.1.0"},
            "device": "1 x abacus",
            "seconds": 4.0,
            "package_version": "0.1.0",
        },
    }
    assert saved.png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in saved.svg.read_bytes()


def test_the_same_result_gives_the_same_bytes():
    first = [path.read_bytes() for path in save()[:3]]
    slower = {name: history(run.metrics["accuracy"], seconds=99.0) for name, run in RUNS.items()}
    again = [path.read_bytes() for path in save(slower)[:3]]
    assert first == again
    assert b"Date" not in first[0]
    assert f"v{mpl.__version__}".encode() not in first[0]
    assert b"Software" not in first[1]


def test_another_result_has_its_own_provenance():
    save()
    other = {name: history(run.metrics["accuracy"] / 2, seconds=99.0) for name, run in RUNS.items()}
    assert json.loads(save(other).json.read_text())["provenance"]["seconds"] == 198.0


def test_floats_have_six_digits_and_nan_is_null():
    metrics = {"a": {"mean": 1 / 3, "std": float("nan"), "n": 1}, "b": {"mean": 123456789.0, "std": 1e-9 / 3, "n": 1}}
    content = json.loads(save(metrics=metrics).json.read_text())
    assert content["metrics"]["a"] == {"mean": 0.333333, "std": None, "n": 1}
    assert content["metrics"]["b"] == {"mean": 123457000.0, "std": 3.33333e-10, "n": 1}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_six_digits_are_stable(value):
    once = figures._plain(value)
    assert figures._plain(once) == once
    assert abs(once - value) <= 1e-5 * abs(value)


@pytest.mark.parametrize(("first", "second"), [("laptop", "quick"), ("paper", "laptop"), ("paper", "quick")])
def test_a_larger_preset_is_never_replaced(first, second, capsys):
    large = [path.read_bytes() for path in save(preset=first)[:3]]
    small = save(preset=second)
    assert small.json == files.figures_dir() / second / "fedeq" / f"{ITEM[1]}.json"
    assert f"larger preset '{first}'" in small.note
    assert f"larger preset '{first}'" in capsys.readouterr().out
    assert [(files.figures_dir() / "fedeq" / path.name).read_bytes() for path in small[:3]] == large
    assert sorted(result["preset"] for result in figures.results()) == sorted([first, second])
    again = save(preset=first)
    assert again.json.parent == files.figures_dir() / "fedeq"


def test_a_larger_preset_replaces_a_smaller_one():
    save(preset="quick")
    saved = save(preset="laptop")
    assert saved.json.parent == files.figures_dir() / "fedeq"
    assert figures.read_result(saved.json)["preset"] == "laptop"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holds": False, "departures": []}, "needs an explanation"),
        ({"preset": "quikc"}, "unknown preset 'quikc'; did you mean 'quick'"),
        ({"metrics": {"mlp": {"mean": 1.0}}}, "metric 'mlp' needs exactly mean, std and n"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        save(**changes)
    assert not files.figures_dir().exists()


def test_what_is_not_said_comes_from_the_runs_and_the_paper():
    saved = figures.save_figure(
        draw(), *ITEM, holds=True, preset="quick", metrics=figures.summary(RUNS), histories=RUNS
    )  # fmt: skip
    result = figures.read_result(saved.json)
    assert result["claim"].startswith("same accuracy within 2 points")
    assert (result["data_source"], result["seeds"], result["parameters"]) == ("made by a test", [0, 1], {})
    assert [row["name"] for row in result["published"]] == ["accuracy_gap", "size_reduction_percent"]


def test_unknown_items():
    with pytest.raises(InputError, match="did you mean 'fig04_mlp_vs_deq_mlp'"):
        figures.save_figure(
            draw(), "fedeq", "fig04_mlp_vs_deq", claim="", holds=True, preset="quick", data_source="", parameters={},
            seeds=[0], metrics={},
        )  # fmt: skip


def test_a_failed_claim_with_its_reason_is_kept():
    result = figures.read_result(save(holds=False, departures=["too few rounds"]).json)
    assert (result["holds"], result["departures"]) == (False, ["too few rounds"])


def test_figures_folder_that_cannot_be_written(folders):
    (folders / "figures").write_text("a file, not a folder")
    with pytest.raises(OutputError, match=r"cannot write .*FEDLAB_"):
        save()
    assert (folders / "figures").read_text() == "a file, not a folder"


def test_read_only_figures_folder(monkeypatch):
    """Root may write anywhere, so the refusal is simulated where the system would make it."""
    before = [path.read_bytes() for path in save()[:3]]

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files.tempfile, "mkstemp", refuse)
    with pytest.raises(OutputError, match="Read-only file system"):
        save(claim="another")
    folder = files.figures_dir() / "fedeq"
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".png", ".svg"]
    assert [(folder / f"{ITEM[1]}.{kind}").read_bytes() for kind in ("svg", "png", "json")] == before


def test_a_damaged_result_is_named():
    file = save().json
    file.write_text("{")
    with pytest.raises(CorruptFileError, match=f"{ITEM[1]}.json is not a result"):
        save()


def test_without_runs_the_provenance_is_this_machine():
    provenance = figures.read_result(save(histories=None).json)["provenance"]
    assert provenance["seconds"] is None
    assert "jax" in provenance["versions"]


def test_curves_mean_band_and_fixed_looks():
    (ax,) = draw().axes
    mlp, fedeq = ax.lines
    np.testing.assert_allclose(mlp.get_ydata(), [10, 60, 70], rtol=1e-6)
    assert fedeq.get_color() == figures.LOOKS["fedeq"][1]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["MLP", "FeDEQ"]
    assert len(ax.collections) == 2  # one band a run
    with pytest.raises(InputError, match="'mlp' has no metric 'lss'; it has accuracy"):
        figures.curves(RUNS, "lss", ax)


def test_client_distribution_names_every_run():
    import matplotlib.pyplot as plt

    clients = {"fedeq": np.linspace(0.1, 0.9, 9), "fedavg": np.full(9, 0.4), "mlp": np.full(9, np.nan)}
    runs = {
        f"cifar10/{name}": replace(RUNS["mlp"], client_curves=np.tile(values.astype(np.float32), (2, 3, 1)))
        for name, values in clients.items()
    }
    fig, ax = plt.subplots()
    assert figures.client_distribution(runs, ax) is ax
    fig.canvas.draw()
    assert [text.get_text() for text in ax.get_yticklabels()] == ["FeDEQ", "FedAvg", "MLP"]
    colours = [mpl.colors.to_hex(body.get_facecolor()[0]).upper() for body in ax.collections]
    assert colours[0] == figures.LOOKS["fedeq"][1]
    (median,) = (line for line in ax.lines if line.get_marker() not in ("", "None"))
    assert median.get_xdata() == pytest.approx(50)
    assert any(np.allclose(line.get_xdata(), 40) for line in ax.lines)  # clients that are all alike: a stroke
    plt.close(fig)


def test_labels_replace_names():
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots()
    figures.curves(RUNS, ax=ax, labels={"mlp": "explicit"})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["explicit", "FeDEQ"]
    plt.close(fig)


def test_every_look_is_its_own():
    looks = [tuple(rest) for _, *rest in figures.LOOKS.values()]
    assert len({colour for colour, *_ in looks}) == len(looks)
    assert len({marker for _, marker, _ in looks}) == len(looks)


def test_summary_and_match():
    metrics = figures.summary(RUNS, last=2)
    assert metrics["mlp"] == {"mean": pytest.approx(0.65), "std": pytest.approx(0.02**0.5), "n": 2}
    rows = figures.match(
        metrics, [{"name": "mlp", "value": 0.7, "where": "Fig. 4"}, {"name": "x", "value": 1, "where": ""}]
    )
    assert rows == [{"name": "mlp", "ours": metrics["mlp"]["mean"], "published": 0.7, "where": "Fig. 4"}]


def test_one_seed_has_no_spread():
    alone = {"mlp": history(RUNS["mlp"].metrics["accuracy"][:1], seeds=(0,))}
    saved = save(alone, seeds=(0,))
    assert json.loads(saved.json.read_text())["metrics"] == {"mlp": {"mean": 60.0, "std": None, "n": 1}}
    (row,) = report._rows([figures.read_result(saved.json)])
    assert row["numbers"] == ["mlp: 60 / 70"]
    assert len(draw(alone).axes[0].collections) == 0  # no band either


def test_accuracy_and_gap_are_of_the_last_tenth_but_of_ten_rounds_at_least():
    long = np.linspace(0.0, 1.0, 201)[None].repeat(2, axis=0)  # 200 rounds: the last 20 count
    runs = {name: history(values) for name, values in (("long", long), ("short", long[:, :13]))}  # 12 rounds: ten
    runs = {
        name: replace(run, metrics=run.metrics | {"accuracy_gap": long[:, : run.num_rounds + 1] / 2})
        for name, run in runs.items()
    }
    metrics = figures.accuracy_and_gap(runs)
    assert list(metrics) == ["long/accuracy", "short/accuracy", "long/gap", "short/gap"]
    assert metrics["long/accuracy"] == {"mean": pytest.approx(100 * long[0, 181:].mean()), "std": 0, "n": 2}
    assert metrics["long/gap"]["mean"] == pytest.approx(50 * long[0, 181:].mean())
    assert metrics["short/accuracy"]["mean"] == pytest.approx(100 * long[0, 3:13].mean(), rel=1e-5)


def test_comparison_shows_gap_and_verdict():
    table = figures.comparison(
        [{"name": "a", "ours": 1.25, "published": 1.0, "holds": True}, {"name": "b", "ours": 2.0, "holds": False}]
    )
    html = table.to_html()
    assert table.data["gap"].tolist()[0] == 0.25
    for part in ("1.25", "0.25", "✔", "✘", "–"):
        assert part in html


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
    assert json.loads(both.json.read_text())["runs"] == sorted(lie())
    save({"one": runs["one"]}, histories={"one": runs["one"]})
    assert lie() == {*run_names(runs["one"])}
