"""Bars in a notebook: one line per cell, however many runs it trains, with curves; empty at the end."""

import math

import nbformat
import pytest
from nbclient import NotebookClient

from fedlab_lite.util import progress

CELL = """
from fedlab_lite.util import progress_bar
for run in range(30):
    with progress_bar(f"<run> {run}", 4) as tick:
        for round in range(4):
            tick(1, {"accuracy": [0.5, 0.75][: round + 1]})
print("result")
"""
SEEN = """
from IPython.display import DisplayHandle
from fedlab_lite.util import progress
said = []
update = DisplayHandle.update
DisplayHandle.update = lambda self, obj, **options: (said.append(obj.data), update(self, obj, **options))
progress.PAUSE = 0
"""
LAST = "print(len(said), said[-2])"
SLIDER = """
from ipywidgets import IntSlider
from fedlab_lite.papers import course
course.slide(lambda rounds: print(rounds), rounds=IntSlider(3))
"""


class Watched(NotebookClient):
    """A client that says, as JupyterLab does, that somebody can be asked for input."""

    async def async_start_new_kernel_client(self):
        client = await super().async_start_new_kernel_client()
        client.allow_stdin = True
        return client


def executed(client, *cells, monkeypatch):
    for name in ("PYTEST_CURRENT_TEST", "FEDLAB_BATCH", "CI"):
        monkeypatch.delenv(name, raising=False)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    return [cell["outputs"] for cell in client(notebook, kernel_name="python3").execute()["cells"]]


@pytest.mark.slow
def test_one_line_per_cell_that_is_empty_at_the_end(monkeypatch):
    _, *found, last = executed(Watched, SEEN, CELL, CELL, LAST, monkeypatch=monkeypatch)
    for line, printed in found:
        assert line["data"]["text/html"] == ""
        assert printed["text"] == "result\n"
    number, shown = last[0]["text"].split(" ", 1)
    assert int(number) == 2 * 30 * (1 + 4 + 1)  # each bar is drawn, advanced and removed
    assert "&lt;run&gt; 29: 4 of 4 rounds" in shown
    assert "; accuracy 0.75" in shown
    assert shown.count("<polyline") == 30


@pytest.mark.slow
def test_a_program_that_runs_a_notebook_sees_neither_bars_nor_widgets(monkeypatch):
    """With a slider, a program sometimes waits for ever for an idle kernel's reply; `make browser` sees sliders."""
    _, found, last, slider = executed(NotebookClient, SEEN, CELL, "print(said)", SLIDER, monkeypatch=monkeypatch)
    assert [each["text"] for each in (*found, *last, *slider)] == ["result\n", "[]\n", "3\n"]


def test_curves():
    assert progress._svg([]) == progress._svg([[0.5]]) == progress._svg([[math.nan, math.nan]]) == ""
    earlier, present = progress._svg([[0.0, 0.5, 1.0], [0.5, math.nan, 0.5]]).split("<polyline")[1:]
    assert 'points="0,46.0 120,24.0 240,2.0"' in earlier
    assert 'points="0,24.0 240,24.0"' in present
    assert progress._svg([range(1000)]).count(",") <= progress.POINTS
    assert "nan" not in progress._svg([[1.0, 1.0], [math.nan, math.inf]])
