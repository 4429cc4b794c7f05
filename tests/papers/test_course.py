"""The course: the form of its lessons, and what a checker tells. `test_course_answers_1.py` and so on try answers."""

import ast
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.papers import course, floors, notebooks, presets, report
from fedlab_lite.papers.answers import Unanswered
from fedlab_lite.util import files

LESSONS = [item for item in presets.items(of=(presets.COURSE,)) if "claim" not in presets.item(*item)]
of_all = pytest.mark.parametrize(
    "item", [item for item in LESSONS if item.notebook.exists()], ids=lambda item: item.stem
)


def cells(item):
    return json.loads(item.notebook.read_text())["cells"]


def tagged(item, tag):
    return [notebooks.source(cell) for cell in cells(item) if tag in cell["metadata"].get("tags", [])]


def test_every_file_is_a_lesson():
    stems = {file.stem for file in files.notebooks_dir().glob("learn/*.ipynb")}
    assert stems <= {item.stem for item in presets.items(of=(presets.COURSE,))}


@of_all
def test_title_cell(item):
    """Title and question as `papers/learn.toml` has them, three aims, what is needed, how long it takes to read."""
    about, text = presets.item(*item), notebooks.source(cells(item)[0])
    assert text.startswith(f"# {about['title']}\n")
    assert len(re.findall(r"^- ", text.partition("After this lesson you can")[2], re.MULTILINE)) == 3
    assert f"**The question**: {about['question']}" in text
    assert re.search(r"^\*\*Before\*\*: ", text, re.MULTILINE)
    for needed in about["needs"]:
        assert re.search(rf"\]\({needed:02}_\w+\.ipynb\)", text), f"lesson {needed} is not named"
    assert f"{about['reading']} minutes to read, " in text


@pytest.mark.parametrize("item", presets.items(of=(presets.COURSE,)), ids=lambda item: item.stem)
def test_running_time_is_that_of_the_table_of_lessons(item):
    minutes = floors.minutes(item, "quick")
    words = "about {} on" if "claim" in presets.item(*item) else "read, {} to run"
    assert words.format(report.duration(minutes)) in notebooks.source(cells(item)[0])
    assert minutes <= 1


@of_all
def test_order(item):
    """Parameters, set-up, body, exercises, then what the papers do with it."""
    content = cells(item)
    assert content[1]["metadata"]["tags"] == ["parameters"]
    assert "fl.check_parameters(globals())" in notebooks.source(
        next(cell for cell in content[2:] if cell["cell_type"] == "code")
    )
    headings = re.findall(
        r"^## (.+)", "\n".join(notebooks.source(c) for c in content if c["cell_type"] == "markdown"), re.M
    )
    assert headings[-2:] == ["Exercises", "What the papers do with it"]
    last = notebooks.source(content[-1])
    links = re.findall(r"\]\((\.\./\w+/\w+\.ipynb)\)", last)
    assert links
    for link in re.findall(r"\]\(([^)#]+\.ipynb)\)", "\n".join(map(notebooks.source, content))):
        target = item.notebook.parent / link
        assert target.exists() or presets.Item(presets.COURSE, target.stem) in LESSONS, link


@of_all
def test_the_reader_predicts(item):
    names = [name for name in notebooks.parameters(item.notebook) if "prediction" in name]
    code = "\n".join(notebooks.source(cell) for cell in cells(item) if cell["cell_type"] == "code")
    assert names
    for name in names:
        assert notebooks.parameters(item.notebook)[name].default is None
        assert re.search(rf"course\.predicted\(\s*{name}\b", code)


@of_all
def test_pictures(item):
    """At least three; plots are folded."""
    plots = [text for text in tagged(item, "hide-input") if re.search(r"plt\.show\(\)|display\(fig", text)]
    assert len(plots) >= 3
    for cell in cells(item):
        if cell["cell_type"] == "code" and "plt.subplots" in notebooks.source(cell):
            assert "hide-input" in cell["metadata"].get("tags", [])


@of_all
def test_exercises(item):
    """Three, each a folded checker with wrong answers, a place for the reader's, and a folded solution."""
    code = [cell for cell in cells(item) if cell["cell_type"] == "code"]
    checkers = [re.findall(r"@course\.exercise\(.*?\ndef (check_\w+)", notebooks.source(c), re.DOTALL) for c in code]
    names = [name for found in checkers for name in found]
    assert len(names) == 3
    for cell, found in zip(code, checkers, strict=True):
        if found or "solution" in cell["metadata"].get("tags", []):
            assert "hide-input" in cell["metadata"]["tags"]
            assert cell["metadata"]["jupyter"]["source_hidden"]
    places, solutions = tagged(item, "exercise"), tagged(item, "solution")
    assert len(places) == len(solutions) == 3
    for name, place, solution in zip(names, places, solutions, strict=True):
        assert re.search(rf"^{name}\(\w+\)$", place, re.MULTILINE)
        assert any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(ast.parse(place)))
        assert f"{name}.solution(" in solution


def test_a_checker_that_takes_a_wrong_answer_for_right_is_an_error():
    with pytest.raises(AssertionError, match="check_twice accepts a wrong answer: forgets to double"):

        @course.exercise(wrong={"forgets to double": lambda x: x})
        def check_twice(answer):
            course.expect(answer(0) == 0, "twice 0 is 0")

    with pytest.raises(ValueError, match="needs a wrong answer"):
        course.exercise(wrong={})


def test_an_answer_that_raises_is_wrong_and_says_so(capsys):
    @course.exercise(wrong={"not a number": "five"})
    def check_five(answer):
        course.expect(abs(answer - 5) < 1e-6, f"{answer} is not 5")

    check_five("five")
    check_five(4)
    check_five(...)
    check_five(5)
    said = capsys.readouterr().out.splitlines()
    assert "✗ not yet: your answer does not fit: TypeError" in said[0]
    assert said[1:] == ["✗ not yet: 4 is not 5", "· no answer yet", "✓ right"]
    with pytest.raises(AssertionError, match="the solution fails: 6 is not 5"):
        check_five.solution(6)


def twice(numbers):
    for place, number in enumerate(numbers):
        numbers[place] = 2 * number
    return numbers


def upside_down(numbers):
    return 1 / 0  # numbers


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda numbers: [2 * number for number in numbers], None),
        (lambda numbers: np.array(numbers) * 2, None),
        (lambda numbers: jnp.array(numbers) * 2, None),
        (lambda numbers: numbers * 2, "an array of shape (6,), not an array of shape (3,)"),
        (lambda numbers: [number + 1 for number in numbers], "is [2, 3, 6], not [2, 4, 10]: that is one more"),
        (lambda numbers: None, "you returned nothing: does your function end with `return`?"),
        (lambda numbers: [None] * 3, "not finite"),
        (twice, "it changes its argument `numbers`: work on a copy"),
        (upside_down, "it raises ZeroDivisionError: division by zero, in line {}: `return 1 / 0  # numbers`"),
        (lambda: 3, "it raises TypeError"),
        ([2, 4, 10], "a function is asked for"),
    ],
)
def test_what_an_answer_is_told(answer, told):
    @course.exercise(wrong={"that is one more": lambda numbers: [number + 1 for number in numbers]})
    def check_twice(answer):
        course.compare(answer, lambda numbers: [2 * number for number in numbers], [1, 2, 5])

    why = check_twice.why(answer)
    assert why is None if told is None else told.format(upside_down.__code__.co_firstlineno + 1) in why


def test_no_answer_yet():
    @course.exercise(wrong={"one more": lambda x: x + 1})
    def check_same(answer):
        course.compare(answer, lambda x: x, 1.0, 2.0)

    for answer in (..., None, lambda x: ..., lambda x: (1, ...)):
        with pytest.raises(Unanswered):
            check_same.why(answer)


def test_toy_problems():
    """Whole numbers are classes, others answers of least squares; rows beyond a client's size do not count."""
    x, y = np.arange(12.0).reshape(2, 3, 2), np.array([[0, 1, 2], [2, 1, 0]])
    problem = course.toy(x, y, (x[:, :1], y[:, :1]), outputs=3, features=4)
    params = problem.model.init(jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == {"representation": {"B": (2, 4)}, "head": {"kernel": (4, 3)}}
    assert problem.data.test_size.tolist() == [1, 1]
    assert problem.task.headline == "accuracy"

    problem = course.toy(x, x @ [1.0, -1.0], sizes=[3, 1])
    assert problem.data.size.tolist() == [3, 1]
    assert problem.task.row_loss(jnp.array([[2.0], [0.0]]), jnp.array([0.0, 4.0])).tolist() == [2, 8]
    params = {"representation": {"B": jnp.array([[1.0], [-1.0]])}, "head": {}}
    assert np.allclose(problem.model.apply(params, x[0])[:, 0], x[0] @ [1.0, -1.0])
