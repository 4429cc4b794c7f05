"""The check of words finds what it should; `make lint` runs it as well."""

import ast

import pytest
import words


def test_all_that_people_read_is_plain_english():
    assert not words.check()


def test_all_kinds_of_files_are_read():
    places = {file.relative_to(words.ROOT).parts[0] for file in words.files()}
    assert places == {
        "fedlab_lite",
        "tests",
        "notebooks",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        ".github",
        "conftest.py",
        "pyproject.toml",
    }
    assert {file.parent.name for file in words.files() if file.suffix == ".ipynb"} == {
        *("deprl", "fedeq", "fedf_admm", "fedreco", "fl_deq", "learn")
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Nobody\n    types it.", "'nobody'"),
        ("One TOML file a paper.", "'file a paper'"),
        ("two clients\na round", "'clients a round'"),
        ("500 training samples a client and a fifth", "'samples a client'"),
        ("rows a local step", "'rows a local step'"),
        ("it is dealt anew", "'dealt'"),
    ],
)
def test_words_that_are_not_plain_are_found(text, found):
    (said,) = words.wrong(text)
    assert said.startswith(found)


@pytest.mark.parametrize(
    "text",
    ["In each round a client sends its model.", "rows a client has", "twice a worker's uplink", "the ideal target"],
)
def test_plain_words_are_not(text):
    assert not words.wrong(text)


def test_long_sentences_are_found_where_they_have_to_be_short():
    text = (
        "word " * 25
        + "word. "
        + "word " * 25
        + "\n\n- an item [with a link](to/a/page.md)\n- another | `x y z` and $x + y$"
    )
    assert words.wrong(text) == []
    (said,) = words.wrong(text, short=True)
    assert said.startswith("26 words: word word")
    assert [words.words(each) for each in words.sentences(text)][2:] == [5, 1, 3]


def test_a_formula_on_its_own_lines_ends_a_sentence():
    long = "word " * 24
    assert not words.wrong(f"{long}is\n$$x = y .$$\n{long}end.", short=True)
    assert len(words.wrong(f"{long}is $x$ and\n$$x = y .$$\n", short=True)) == 1


def test_the_texts_of_lessons_need_short_sentences(tmp_path):
    for folder, found in (("learn", [True]), ("fedeq", [False])):
        file = tmp_path / folder / "a.ipynb"
        file.parent.mkdir()
        file.write_text('{"cells": [{"cell_type": "markdown", "source": ["a text"]}]}')
        assert [short for *_, short in words.of_notebook(file)] == found


CODE = '''
def f():
    """Say it.

    Args:
      x: what it is.
      y, z: others.

    >>> f()
    nobody

        a table
    """
    # one
    # comment
    raise ValueError(f"no {f} here")  # how dear
'''


def test_docstrings_comments_and_messages_are_read():
    texts = [text for _, text, _ in words.of_python(CODE)]
    assert [" ".join(text.split()) for text in texts] == [
        "Say it. Args: x: what it is. y, z: others.",
        "one comment",
        "how dear",
        "no x here",
    ]
    assert [each for each in words.sentences(texts[0]) if each] == [
        "Say it.",
        "Args:",
        "x: what it is.",
        "y, z: others.",
    ]
    assert len(words.docstrings(ast.parse(CODE))) == 1


def test_quotations_and_generated_text_are_not_read():
    page = "text\n\n> nobody says\n\n<!-- t:begin -->\nnobody\n<!-- t:end -->\n\nlast"
    assert [(line, text.strip()) for line, text, _ in words.of_page(page)] == [(1, "text"), (9, "last")]


def test_comments_titles_and_claims_of_toml_are_read():
    text = '# first\n[items.a]\nclaim = "c"  # second\nquote = "dealt"\n'
    assert [each for _, each, _ in words.of_toml(text)] == ["first", "second", "c"]
