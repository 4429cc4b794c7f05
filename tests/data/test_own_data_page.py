"""The page `notebooks/your_own_data.md`: every code block runs, word for word, on small data of the test's own."""

import re
import shlex

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedlab_lite.cli import main
from fedlab_lite.util import files

PAGE = files.notebooks_dir() / "your_own_data.md"
TOWNS, JOBS = ("Bern", "Lyon", "Oslo", "Rome"), ("baker", "smith")


def write_data(folder):
    """A table of four towns whose first feature tells the job, and pictures of two classes, bright and dark."""
    rng = np.random.default_rng(0)
    job = np.arange(200) % 2
    columns = {"age": job * 2 - 1 + rng.normal(size=200) / 3, "height": rng.normal(size=200)}
    columns |= {"job": np.array(JOBS)[job], "town": np.array(TOWNS)[np.arange(200) // 50]}
    pd.DataFrame(columns).to_csv(folder / "people.csv", index=False)
    for label, grey in (("cat", 200), ("dog", 30)):
        (folder / "photos" / label).mkdir(parents=True)
        for k in range(10):
            Image.new("RGB", (20 + k, 18), (grey + k, grey, grey)).save(folder / "photos" / label / f"{k}.png")


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path / "data"))
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == PAGE.read_text().count("```") / 2
    names: dict = {}
    for language, code in blocks:
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), names)
            continue
        assert language == "sh"
        for program, *arguments in map(shlex.split, code.splitlines()):
            assert program == "fedlab"
            assert main(arguments) == 0
    said = capsys.readouterr().out
    for words in ("2 float32, 2 classes, 160 + 40 rows, 4 owners", "labels: 0 baker, 1 smith", "16x16x3 uint8"):
        assert words in said
    assert names["arrays"].client_names == ("Ada", "Bob", "Cyd")
    assert names["people"].client_names == TOWNS
    for history, _ in names["runs"].values():
        assert history.final().mean() > 0.9 > history.constant
    right = np.array(JOBS)[names["people"].test_y[0, :3]]
    assert names["saved"].predict(names["rows"], client="Bern").tolist() == right.tolist()
    assert names["accuracy"]["FedPer"].shape == (4,)
