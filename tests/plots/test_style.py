"""How figures look: curves, distributions, tables, legends."""

from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import drawn, history, unlabelled

from fedlab_lite import algorithms
from fedlab_lite.papers import results
from fedlab_lite.plots import style
from fedlab_lite.util import InputError

mpl.use("agg")
RUNS = {"mlp": history([[0.1, 0.5, 0.6], [0.1, 0.7, 0.8]]), "fedeq": history([[0.2, 0.6, 0.6], [0.2, 0.6, 0.6]])}


def test_curves_mean_band_and_fixed_looks():
    (ax,) = drawn(RUNS).axes
    mlp, fedeq = ax.lines
    np.testing.assert_allclose(mlp.get_ydata(), [10, 60, 70], rtol=1e-6)
    assert fedeq.get_color() == style.LOOKS["fedeq"][1]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["MLP", "FeDEQ"]
    assert len(ax.collections) == 2  # one band a run
    with pytest.raises(InputError, match="'mlp' has no metric 'lss'; it has accuracy"):
        style.curves(RUNS, "lss", ax)


def test_client_distribution_names_every_run():
    clients = {"fedeq": np.linspace(0.1, 0.9, 9), "fedavg": np.full(9, 0.4), "mlp": np.full(9, np.nan)}
    runs = {
        f"cifar10/{name}": replace(RUNS["mlp"], client_curves=np.tile(values.astype(np.float32), (2, 3, 1)))
        for name, values in clients.items()
    }
    fig, ax = plt.subplots()
    assert style.client_distribution(runs, ax) is ax
    fig.canvas.draw()
    assert [text.get_text() for text in ax.get_yticklabels()] == ["FeDEQ", "FedAvg", "MLP"]
    colours = [mpl.colors.to_hex(body.get_facecolor()[0]).upper() for body in ax.collections]
    assert colours[0] == style.LOOKS["fedeq"][1]
    (median,) = (line for line in ax.lines if line.get_marker() not in ("", "None"))
    assert median.get_xdata() == pytest.approx(50)
    assert any(np.allclose(line.get_xdata(), 40) for line in ax.lines)  # clients that are all alike: a stroke
    plt.close(fig)


def test_labels_replace_names():
    fig, ax = plt.subplots()
    style.curves(RUNS, ax=ax, labels={"mlp": "explicit"})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["explicit", "FeDEQ"]
    plt.close(fig)


def test_every_algorithm_has_a_look_of_its_own():
    lacking = algorithms.ALGORITHMS.keys() - style.LOOKS.keys()
    assert not lacking, f"give {sorted(lacking)} a line in plots/looks.toml, or figures leave them out"
    for part, what in ((1, "colour"), (2, "marker")):
        owners: dict[str, list[str]] = {}
        for name, look in style.LOOKS.items():
            owners.setdefault(look[part], []).append(name)
        alike = {value: names for value, names in owners.items() if len(names) > 1}
        assert not alike, f"algorithms in plots/looks.toml with the same {what}: {alike}"


def test_summary_and_match():
    metrics = style.summary(RUNS, last=2)
    assert metrics["mlp"] == {"mean": pytest.approx(0.65), "std": pytest.approx(0.02**0.5), "n": 2}
    rows = results.match(
        metrics, [{"name": "mlp", "value": 0.7, "where": "Fig. 4"}, {"name": "x", "value": 1, "where": ""}]
    )
    assert rows == [{"name": "mlp", "ours": metrics["mlp"]["mean"], "published": 0.7, "where": "Fig. 4"}]


def test_accuracy_and_gap_are_of_the_last_tenth_but_of_ten_rounds_at_least():
    long = np.linspace(0.0, 1.0, 201)[None].repeat(2, axis=0)  # 200 rounds: the last 20 count
    runs = {name: history(values) for name, values in (("long", long), ("short", long[:, :13]))}  # 12 rounds: ten
    runs = {
        name: replace(run, metrics=run.metrics | {"accuracy_gap": long[:, : run.num_rounds + 1] / 2})
        for name, run in runs.items()
    }
    metrics = style.accuracy_and_gap(runs)
    assert list(metrics) == ["long/accuracy", "short/accuracy", "long/gap", "short/gap"]
    assert metrics["long/accuracy"] == {"mean": pytest.approx(100 * long[0, 181:].mean()), "std": 0, "n": 2}
    assert metrics["long/gap"]["mean"] == pytest.approx(50 * long[0, 181:].mean())
    assert metrics["short/accuracy"]["mean"] == pytest.approx(100 * long[0, 3:13].mean(), rel=1e-5)
    once = np.where([[True], [False]], long / 4, np.nan)  # the second seed was not judged after local training
    runs["long"] = replace(runs["long"], metrics=runs["long"].metrics | {"accuracy_trained": once})
    metrics = style.accuracy_and_gap(runs)
    assert list(metrics) == ["long/accuracy", "short/accuracy", "long/gap", "short/gap", "long/trained"]
    assert metrics["long/trained"] == {"mean": pytest.approx(25 * long[0, 181:].mean()), "std": None, "n": 1}


def test_accuracies_at_both_moments_are_of_the_seeds_that_were_judged_then():
    values, lacking = np.full((2, 3), 0.5), np.array([[0.25] * 3, [np.nan] * 3])
    runs = {name: history(values, algorithm=name) for name in ("fedrep", "local")}
    runs["fedrep"] = replace(runs["fedrep"], metrics=runs["fedrep"].metrics | {"accuracy_trained": lacking})
    assert {m: v.tolist() for m, v in style.both_moments(runs["fedrep"]).items()} == {
        "mixed": [50, 50],
        "trained": [25],
    }
    assert {m: v.tolist() for m, v in style.both_moments(runs["local"]).items()} == {
        "mixed": [50, 50],
        "trained": [50, 50],
    }
    assert style.summary_at_moments(runs) == {
        "fedrep/mixed": {"mean": 50, "std": 0, "n": 2},
        "fedrep/trained": {"mean": 25, "std": None, "n": 1},
    }
    assert style.summary({"fedrep": runs["fedrep"]}, "accuracy_trained")["fedrep"]["n"] == 1


def test_comparison_shows_gap_and_verdict():
    table = style.comparison(
        [{"name": "a", "ours": 1.25, "published": 1.0, "holds": True}, {"name": "b", "ours": 2.0, "holds": False}]
    )
    html = table.to_html()
    assert table.data["gap"].tolist()[0] == 0.25
    for part in ("1.25", "0.25", "✔", "✘", "–"):
        assert part in html


def test_names_are_no_formulas():
    runs = {"column/cost$_^$x": history([[0.1, 0.5]], seeds=(0,), dataset="digits", partition="iid")}
    fig = drawn(runs)
    fig.canvas.draw()
    assert fig.axes[0].get_legend().get_texts()[0].get_text() == r"cost\$_^\$x"


def test_a_single_seed_has_no_band():
    assert len(drawn({"mlp": history(RUNS["mlp"].metrics["accuracy"][:1], seeds=(0,))}).axes[0].collections) == 0


def test_the_majority_baseline_and_what_diverged_are_said():
    runs = {
        "mlp": replace(RUNS["mlp"], constant=0.25),
        "fedeq": replace(RUNS["fedeq"], diverged=(False, True), constant=0.25),
    }
    (ax,) = drawn(runs).axes
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["MLP", "FeDEQ (diverged)", "majority baseline"]
    assert list(ax.lines[-1].get_ydata()) == [25, 25]


def test_a_panel_names_what_diverged():
    fig, ax = plt.subplots()
    style.name_diverged(ax, {"D-PSGD": replace(RUNS["fedeq"], diverged=(False, True)), "Local": RUNS["mlp"]})
    assert [text.get_text() for text in ax.texts] == ["diverged: D-PSGD"]
    plt.close(fig)


def test_what_the_paper_prints_is_a_hollow_marker_with_one_entry():
    fig, ax = plt.subplots()
    style.printed(ax, [0, 1], [50, None], "#D55E00")
    style.printed(ax, 2, 60, "#0072B2")
    assert [line.get_label() for line in ax.lines] == ["published", "_nolegend_"]
    assert ax.lines[0].get_markerfacecolor() == "white"
    assert np.isnan(ax.lines[0].get_ydata()[1])
    plt.close(fig)


def test_markers_that_no_legend_has_are_named():
    fig, ax = plt.subplots()
    ax.plot([0, 1], [0, 1], marker="o", linestyle="--", label="one")
    ax.legend()
    ax.plot([0, 1], [1, 0], marker="x", linestyle="none")
    ax.set_title("left")
    assert unlabelled(fig) == ["left: marker x, line None"]
    ax.lines[1].set_gid("labelled")  # by a text beside it
    assert unlabelled(fig) == []
    plt.close(fig)


def test_a_shared_legend_has_each_label_once_and_the_panels_have_none():
    fig, axes = plt.subplots(2, 2, layout="constrained")
    for ax in axes[0]:
        style.curves(RUNS, ax=ax)
    axes[1, 0].plot([0, 1], label="another")
    axes[1, 0].legend()
    legend = style.shared_legend(fig, axes[0], ncols=2)
    assert [text.get_text() for text in legend.get_texts()] == ["MLP", "FeDEQ"]
    assert all(ax.get_legend() is None for ax in axes[0])
    assert axes[1, 0].get_legend() is not None
    assert unlabelled(fig) == []
    assert len(style.shared_legend(fig).get_texts()) == 3
    assert len(style.shared_legend(fig, axes[0, 0]).get_texts()) == 2
    plt.close(fig)
