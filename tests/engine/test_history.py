"""How a history shows itself: in a line, in Jupyter, as a curve."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import history

from fedlab_lite.engine import History, Progress
from fedlab_lite.plots import style
from fedlab_lite.util import InputError

mpl.use("agg")
RUN = history([[0.1, 0.5, 0.6], [0.1, 0.7, 0.8]])
RUN = replace(RUN, metrics=RUN.metrics | {"loss": np.array([[2, 1, 0.5], [2, 1, 0.4]], np.float32)})
RUN = replace(RUN, about={"algorithm": "FedAvg", "model": "<b>mine</b>", "dataset": "a & b"})
BROKEN = replace(RUN, metrics=RUN.metrics | {"loss": np.array([[2, 1, 0.5], [2, 1, np.nan]], np.float32)})


def test_one_line():
    text = repr(RUN)
    assert "\n" not in text
    assert len(text) < 160
    assert "array" not in text
    assert text.startswith("History(FedAvg · <b>mine</b> · a & b: ")
    assert f"accuracy {RUN.final().mean():.4g}" in text
    assert "1 diverged" in repr(replace(RUN, diverged=(True, False)))


def test_jupyter_shows_whole_and_escaped_html():
    text = RUN._repr_html_()
    card = ET.fromstring(text)  # well-formed
    assert len(card.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2
    assert card.find("div/b").text == "FedAvg · <b>mine</b> · a & b"
    assert "<b>mine" not in text
    assert len(text) < 5000
    (accuracy,) = (row for row in card.iter("tr") if row[0].text == "final accuracy")
    assert accuracy[1].text.startswith(f"{RUN.final().mean():.4g} ± ")


@pytest.mark.parametrize("values", [np.nan, np.inf, 0.5, -np.inf])
@pytest.mark.parametrize("evaluations", [1, 3])
def test_whatever_came_of_it(values, evaluations):
    """Runs without rounds, constant curves, and what diverged."""
    metrics = {name: np.full((2, evaluations), values) for name in ("accuracy", "loss")}
    run = replace(RUN, metrics=metrics, rounds=np.arange(evaluations), num_rounds=evaluations - 1)
    ET.fromstring(run._repr_html_())
    assert not re.search("nan,|,nan|inf,", run._repr_html_())
    assert "\n" not in repr(run)
    bare = replace(RUN, metrics={}, about={}, message_bytes={})
    ET.fromstring(bare._repr_html_())
    assert isinstance(bare, History)
    assert repr(bare).startswith("History(")


def test_a_broken_model_has_no_accuracy():
    assert np.isnan(BROKEN.values("accuracy")).tolist() == [[False, False, False], [False, False, True]]
    assert BROKEN.values("accuracy").dtype == BROKEN.metrics["accuracy"].dtype
    assert np.isnan(BROKEN.final(last=1)).tolist() == [False, True]
    with pytest.raises(InputError, match="last must be of type int, at least 1, got 0"):
        BROKEN.final(last=0)
    ax = BROKEN.plot()
    assert np.isnan(ax.lines[0].get_ydata()).tolist() == [False, False, True]
    plt.close(ax.figure)
    assert "accuracy nan" in repr(BROKEN)
    assert "accuracy: 0.1 to 0.6" in BROKEN._repr_html_()


def test_plot():
    ax = RUN.plot()
    np.testing.assert_allclose(ax.lines[0].get_ydata(), RUN.metrics["accuracy"].mean(0))
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("accuracy", "communication round")
    assert RUN.plot("loss", ax, label="ours", scale=2) is ax
    assert ax.lines[1].get_label() == "ours"
    assert ax.lines[0].get_color() != ax.lines[1].get_color()
    with pytest.raises(InputError, match="this run has no metric 'lss'; it has accuracy"):
        RUN.plot("lss")
    plt.close("all")


def test_curves_and_plot_are_the_same_drawing():
    """To the pixel."""
    pixels = []
    for draw in (
        lambda ax: style.curves({"fedeq": RUN}, "accuracy", ax),
        lambda ax: (RUN.plot(ax=ax, **style.look("fedeq")), style.constant_line({"": RUN}, ax), ax.legend()),
    ):
        fig, ax = plt.subplots()
        draw(ax)
        fig.canvas.draw()
        pixels.append(np.asarray(fig.canvas.buffer_rgba()).copy())
        plt.close(fig)
    np.testing.assert_array_equal(*pixels)


def test_a_metric_that_begins_after_an_interruption_is_nan_before():
    """Another version wrote the checkpoint; a curve that is too short would make the finished run unreadable."""
    found = Progress()
    for index, curves in enumerate([{"loss": 1.0}, {"loss": 0.5, "gap": 0.25}]):
        found.add(index, {name: np.float32(value) for name, value in curves.items()}, np.zeros(2, np.float32), np.True_)
    np.testing.assert_array_equal(found.metrics["gap"], np.float32([np.nan, 0.25]))
    assert found.metrics["loss"].tolist() == [1.0, 0.5]


def test_seeds_of_two_versions_stack_and_say_what_each_has():
    """What one seed has measured more than another is nan there; another training is refused."""
    old, new = history([[0.1, 0.5]], seeds=(0,)), history([[0.1, 0.7]], seeds=(1,))
    new = replace(new, metrics=new.metrics | {"accuracy_mixed": new.metrics["accuracy"]})
    both = History.stack([old, new])
    assert list(both.metrics) == ["accuracy", "accuracy_mixed"]
    assert both.metrics["accuracy"][:, -1].tolist() == pytest.approx([0.5, 0.7])
    assert [both.has(name).tolist() for name in ("accuracy", "accuracy_mixed", "no")] == [
        [True] * 2,
        [False, True],
        [False] * 2,
    ]
    np.testing.assert_array_equal(both.final("accuracy_mixed", 1), np.array([np.nan, 0.7], np.float32))
    broken = replace(both, metrics={name: np.full((2, 2), np.nan) for name in both.metrics})
    assert broken.has("accuracy_mixed").all()  # it diverged, which is no lack
    longer = history([[0.1, 0.5, 0.6]], seeds=(1,))
    other = replace(new, metrics={"loss": new.metrics["accuracy"]})
    for wrong in (longer, other):
        with pytest.raises(InputError, match="cannot be stacked"):
            History.stack([old, wrong])
