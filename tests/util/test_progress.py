"""Bars in a notebook: one line per cell, however many runs it trains, and empty at the end."""

import nbformat
import pytest
from nbclient import NotebookClient

CELL = """
from fedlab_lite.util import progress_bar
for run in range(30):
    with progress_bar(f"<run> {run}", 4) as tick:
        for _ in range(4):
            tick(1)
print("result")
"""
SEEN = """
from IPython.display import DisplayHandle
from fedlab_lite.util import progress
said = []
update = DisplayHandle.update
DisplayHandle.update = lambda self, obj, **options: (said.append(obj.data), update(self, obj, **options))
"""


@pytest.mark.slow
def test_one_line_per_cell_that_is_empty_at_the_end(monkeypatch):
    for name in ("PYTEST_CURRENT_TEST", "FEDLAB_BATCH", "CI"):
        monkeypatch.delenv(name, raising=False)
    cells = [nbformat.v4.new_code_cell(text) for text in (SEEN, CELL, CELL, "print(len(said), said[0])")]
    found = NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3").execute()["cells"]
    for cell in found[1:3]:
        line, printed = cell["outputs"]
        assert line["data"]["text/html"] == ""
        assert printed["text"] == "result\n"
    number, first = found[3]["outputs"][0]["text"].split(" ", 1)
    assert int(number) >= 2 * 30 * 2  # each bar is drawn and removed
    assert "&lt;run&gt; 0: 0 of 4 rounds" in first
