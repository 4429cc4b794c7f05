"""The form of the notebooks, and that what is generated from them and their results is fresh."""

import ast
import json
import re
import tomllib

import nbformat
import pytest
import yaml

from fedlab_lite.papers import notebooks, pages, presets, report, results
from fedlab_lite.util import files

NOTEBOOKS = sorted(files.notebooks_dir().glob("*/*.ipynb"))
ROOT = files.project_root()
of_papers = pytest.mark.parametrize(
    "file", [file for file in NOTEBOOKS if file.parent.name in presets.PAPERS], ids=lambda file: file.stem
)
of_all = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)

KINDS = {"fig": "Figure", "tab": "Table", "thm": "Theorem|Theorems|Section|Lemma", "eq": "Equation", "sec": "Section"}
KINDS |= {f"app{letter}": "Appendix" for letter in "abcdef"}


def cells(file):
    return json.loads(file.read_text())["cells"]


def sources(file, kind):
    return [notebooks.source(cell) for cell in cells(file) if cell["cell_type"] == kind]


def test_there_are_notebooks():
    assert {file.stem for file in NOTEBOOKS} >= {item.stem for item in presets.items()}


@of_all
def test_clean_and_runnable(file):
    """No outputs, no counts, a kernelspec that papermill can use."""
    content = json.loads(file.read_text())
    nbformat.validate(content)
    kernel = content["metadata"]["kernelspec"]
    assert kernel["name"] == "python3"
    assert kernel["language"] == "python"
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@of_all
def test_cells_are_short_and_paths_relative(file):
    for text in sources(file, "code"):
        assert len([line for line in text.splitlines() if line.strip()]) <= 15, text
    everything = "\n".join(notebooks.source(cell) for cell in cells(file))
    assert not re.search(r"(?<![\w.:/])/(home|root|work|tmp|usr|Users|mnt)/|[A-Z]:\\", everything)


@of_papers
def test_stem_is_known(file):
    about = presets.item(file.parent.name, file.stem)
    assert about["claim"]
    assert re.fullmatch(r"((fig|tab|thm|eq|sec)\d+|app[a-z])(_[a-z0-9]+)+", file.stem)


@of_papers
def test_title_cell(file):
    """A claim as a sentence, the committed result as it is, the presets as a table."""
    first = cells(file)[0]
    text = notebooks.source(first)
    assert first["cell_type"] == "markdown"
    kind = re.match("[a-z]+", file.stem)[0]
    number = r"([\dIVX]+(\.\d+)?(-\w+)?|[A-F])"
    assert re.match(rf"# ({KINDS[kind]}) {number}( and {number})?(, .*)?: \S.+", text), text.splitlines()[0]
    for preset in presets.PRESETS:
        assert re.search(rf"^\|[^|]*\b{preset}\b[^|]*\|", text, re.MULTILINE), f"no row for {preset}"
    assert "Differs from the paper" not in text, "the closing table has the departures"


@of_papers
def test_the_picture_has_a_caption_of_one_sentence(file):
    said = report.caption(presets.Item(file.parent.name, file.stem))
    assert re.fullmatch(r"[A-Z][^.?!]*[.?]", said)


@of_papers
def test_parameters_cell(file):
    """The second cell; typed literals, each with a comment; a preset among them."""
    second = cells(file)[1]
    assert second["metadata"].get("tags") == ["parameters"]
    found = notebooks.parameters(file)
    assert found["preset"] == (str, "quick")
    lines = notebooks.source(second).splitlines()
    statements = ast.parse(notebooks.source(second)).body
    assert len(statements) == len(found)
    for node in statements:
        assert re.search(r"  # \w.+", lines[node.end_lineno - 1]), f"no comment: {lines[node.end_lineno - 1]}"
    for name, parameter in found.items():
        notebooks.check_parameters(file, {name: parameter.default})


@of_papers
def test_order(file):
    """Title, parameters, settings, body, verdict, save_figure in the last code cell, departures, Try it."""
    content = cells(file)
    code = [index for index, cell in enumerate(content) if cell["cell_type"] == "code"]
    settings = notebooks.source(content[code[1]])
    assert "import" in settings
    assert "settings" in settings
    tries, departs = (
        [index for index, cell in enumerate(content) if notebooks.source(cell).startswith(heading)]
        for heading in ("## Try it", "## Where this departs from the paper")
    )
    assert len(tries) == len(departs) == 1
    assert departs[0] < tries[0]
    assert "| paper | reference code | here | effect |" in notebooks.source(content[departs[0]])
    assert len(content) - tries[0] <= 2  # at most one cell with a control after it
    saved = [index for index in code if "fl.papers.save_figure(" in notebooks.source(content[index])]
    assert saved == [max(index for index in code if index < departs[0])]
    kinds = "".join(cell["cell_type"][0] for cell in content[2:])
    assert "cccc" not in kinds, "four code cells in a row: say why and what to notice"


@of_all
def test_cells_that_the_book_folds_are_folded_in_jupyterlab_too(file):
    for cell in (cell for cell in cells(file) if cell["cell_type"] == "code"):
        folded = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        assert folded == ("hide-input" in cell["metadata"].get("tags", [])), notebooks.source(cell)


@of_papers
def test_the_gate_decides(file):
    """A verdict is evidence's, and no assertion stands in for it; plots are folded, the algorithm is shown."""
    code = "\n".join(sources(file, "code"))
    assert re.search(r"fl\.verdicts\.(derived|compare|observed|together)\(", code)
    assert "verdict=verdict" in code
    assert not re.search(r"\bholds\b *=|^assert ", code, re.MULTILINE)
    for cell in cells(file):
        if cell["cell_type"] == "code" and re.search(r"\bplt\.|figures\.use_style", notebooks.source(cell)):
            hidden = "hide-input" in cell["metadata"].get("tags", [])
            assert hidden or "import matplotlib" in notebooks.source(cell), notebooks.source(cell)
    if presets.settings(file.parent.name, file.stem, "quick"):
        assert "fl.papers.listing(" in code, "a training notebook shows the update that it is about"


@of_papers
def test_a_number_of_runs_is_judged_with_its_runs(file):
    """Without them it is not known whether all seeds have one partition, and whether the methods have learnt."""
    code = sources(file, "code")
    if not any("run_all(" in each for each in code):
        return
    calls = [node for each in code for node in ast.walk(ast.parse(each)) if isinstance(node, ast.Call)]
    for call in calls:
        if getattr(call.func, "attr", "") == "observed":
            given = {keyword.arg for keyword in call.keywords}  # None: `**about`
            nothing = len(call.args) > 1 and ast.unparse(call.args[1]) == "[]"
            assert given & {"runs", "each", "error", None} or nothing, ast.unparse(call)


@of_papers
def test_committed_result_is_whole_and_not_older_than_its_notebook(file):
    """`make figures` draws it again from its runs, or lets it say that it is stale."""
    figure = ROOT / "figures" / file.parent.name / f"{file.stem}.json"
    if not figure.exists():
        assert not figure.with_suffix(".svg").exists()
        pytest.skip("no committed figure yet")
    result = results.read_result(figure)
    assert figure.with_suffix(".svg").exists()
    assert figure.with_suffix(".png").exists()
    assert (result["paper"], result["item"]) == (file.parent.name, file.stem)
    assert result["metrics"]
    assert result["reason"]
    assert result.get("stale") or not results.is_stale(result)


def test_what_is_generated_is_fresh(monkeypatch):
    """`fedlab report --write` brings it up to date."""
    monkeypatch.delenv("FEDLAB_FIGURES")
    for file, text in pages.generated().items():
        assert file.read_text() == text, file


def test_a_notebook_has_the_times_of_the_list(tmp_path):
    """What its row says besides stays, such as the time after another notebook."""
    item = presets.items("fl_deq/fig02")[0]
    old = json.loads(item.notebook.read_text())
    first = notebooks.source(old["cells"][0])
    row = f"| {report.time_of(item, 'quick')}, 10 s after Figure 1 |"
    assert row in first
    old["cells"][0]["source"] = first.replace(row, "| 5 min, 10 s after Figure 1 |")
    (tmp_path / "old.ipynb").write_text(json.dumps(old))
    assert row in pages._with_result(tmp_path / "old.ipynb", item, None)


def test_the_readme_is_one_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_readme_links_lead_somewhere():
    for readme in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", files.notebooks_dir() / "README.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", readme.read_text()):
            assert (readme.parent / target).exists(), f"{readme.name}: {target}"


def test_environment_defers_to_pyproject():
    """One list of packages: conda brings Python and pip, pip reads pyproject.toml."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    *conda, pip = environment["dependencies"]
    assert conda == [f"python{project['requires-python']}", "pip"]
    assert pip == {"pip": ["-e .[all]"]}
    assert "all" in project["optional-dependencies"]
