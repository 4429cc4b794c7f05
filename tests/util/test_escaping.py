"""Text from elsewhere where it is shown: none of it is obeyed by a terminal, a browser, Markdown or a shell."""

import shlex
from html.parser import HTMLParser

import pytest
from helpers import recorded
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from fedlab_lite.cli import main
from fedlab_lite.data import federated
from fedlab_lite.papers import Item, first_cells, gallery, report, variants
from fedlab_lite.papers.outcome import Verdict
from fedlab_lite.util import InputError, files
from fedlab_lite.util.text import code, html, markdown, plain

ITEM = Item("fedeq", "fig04_mlp_vs_deq_mlp")
HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "a | b |\n| --- | --- |",
    "`$(touch owned)` '; touch owned #",
    "[a](javascript:alert(1)) ![b](http://x/y) <http://x>",
    "$a$ $$b$$ **c** ~~d~~ {e}`f`",
    "\x1b[2J\x1b]0;t\x07 \u202e \x9b",
    "\n\n# heading\n\n<!-- result:end -->\n",
)
KEPT = ("paper", "item", "preset", "outcome", "word", "scope", "shown")  # names of files, and words from a list


def poisoned(value, poison):
    """A record with this text after every name and every text in it."""
    if isinstance(value, dict):
        return {f"{name}{poison}": poisoned(each, poison) for name, each in value.items()}
    if isinstance(value, list):
        return [poisoned(each, poison) for each in value]
    return f"{value}{poison}" if isinstance(value, str) else value


def result_with(poison):
    """A result of the right form, with this text in all that a file may say."""
    said = {"reading": {"outcome": "agrees", "reason": "so"}}
    plain = recorded(ITEM, "laptop", readings=said, also=said, seeds=[0], departures=["one"])
    fixed = {"outcome": "agrees", "here": [poison], "paper": [1], "mean": 1.0, "std": 0.0, "n": 1}

    def filled(value):
        if isinstance(value, dict):
            known = {"outcome", "reason", "here", "paper", "mean", "std", "n", "name", "value", "where"}
            known |= {"device", "seconds", "versions", "package_version", "preset", "num_rounds"}
            return {k if k in known else f"{k}{poison}": fixed.get(k, filled(v)) for k, v in value.items()}
        return poisoned(value, poison) if isinstance(value, str) else value

    record = {name: value if name in KEPT else filled(value) for name, value in plain.items()}
    record["parameters"] = {"preset": "laptop", "num_rounds": poison}
    record["constant_answer"] = {f"mlp{poison}": 10.0}
    return record | {"changed": {"dataset": f"x{poison}"}}


def tokens_of(text):
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).use(dollarmath_plugin)
    found = []
    for token in parser.parse(text):
        found += [token, *(token.children or ())]
    return [(token.type, token.tag, *sorted(token.attrs.items())) for token in found if token.type not in PLAIN]


PLAIN = ("text", "softbreak", "inline", "code_inline", "text_special")


@pytest.mark.parametrize("poison", HOSTILE)
def test_pages_of_results_show_text_as_text(poison):
    """The same headings, tables, links and pictures as without it."""
    pages = [report.page("fedeq", {ITEM: result_with(each)}) for each in ("x", poison)]
    assert tokens_of(pages[0]) == tokens_of(pages[1])
    cells = [first_cells.committed(ITEM, result_with(each)) for each in ("x", poison)]
    assert tokens_of(cells[0]) == tokens_of(cells[1])
    verdicts = [Verdict("agrees", f"so{each}")._repr_markdown_() for each in ("x", poison)]
    assert tokens_of(verdicts[0]) == tokens_of(verdicts[1])


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, attrs))

    def handle_comment(self, data):
        self.found.append(("comment", data))


@pytest.mark.parametrize("poison", HOSTILE)
def test_pages_of_pictures_show_text_as_text(poison, folders):
    pages = [gallery.write_page({ITEM: result_with(each)}).read_text(encoding="utf-8") for each in ("x", poison)]
    assert Tags(pages[0]).found == Tags(pages[1]).found
    pages = [gallery.markdown({ITEM: result_with(each)}) for each in ("x", poison)]
    assert tokens_of(pages[0]) == tokens_of(pages[1])
    assert Tags(f'<a title="{html(poison)}">{html(poison)}</a>').found == [("a", [("title", plain_line(poison))])]


def test_names_of_files_on_the_page_of_pictures_are_text(folders):
    hostile = Item(ITEM.paper, f'{ITEM.stem},"><script>')
    text = gallery.write_page({hostile: result_with("x")}).read_text(encoding="utf-8")
    assert [tag for tag, _ in Tags(text).found if tag in ("script", "a")] == []
    assert "&quot;&gt;&lt;script&gt;.ipynb</code>" in text


def plain_line(text):
    return plain(" ".join(text.split())) if text.strip() == text else plain(f" {' '.join(text.split())} ")


@pytest.mark.parametrize("poison", HOSTILE)
def test_the_printed_command_is_one_command(poison):
    result = result_with(poison)
    page = report.page("fedeq", {ITEM: result})
    (line,) = [line for line in page.splitlines() if "fedlab run" in line]
    words = shlex.split(line.strip("` "))
    assert words[:5] == ["fedlab", "run", str(ITEM), "--preset", "laptop"]
    assert variants.parsed([(words[6], words[7])]) == {"num_rounds": poison}
    assert len(words) == 8


@given(st.recursive(st.text() | st.integers() | st.booleans() | st.none(), lambda each: st.lists(each, max_size=3)))
def test_parameters_on_a_command_line_are_read_back(value):
    flag, name, text = shlex.split(variants.given({"dataset": value}))
    assert (flag, variants.parsed([(name, text)])) == ("-p", {"dataset": value})
    assert text.isprintable() or text == ""
    assert not (isinstance(value, str) and text.startswith("-"))


@given(st.text())
def test_nothing_is_obeyed(text):
    assert all(each.isprintable() or each in "\n\t" for each in plain(text))
    assert tokens_of(f"a {markdown(text)} b") == tokens_of("a b")
    assert [kind for kind, *_ in tokens_of(f"a {code(text)} b")] == [kind for kind, *_ in tokens_of("a b")]
    assert len(tokens_of(f"| a | b |\n| --- | --- |\n| {markdown(text)} | c |")) == len(
        tokens_of("| a | b |\n| --- | --- |\n| x | c |")
    )


def test_nothing_in_a_result_or_a_label_reaches_the_terminal_as_a_command(folders, capsys, monkeypatch):
    import json

    import numpy as np

    file = files.figures_dir() / ITEM.paper / f"{ITEM.stem}.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(result_with("\x1b[2J")), encoding="utf-8")
    assert main(["report", "--full"]) == 0
    monkeypatch.setenv("FEDLAB_DATA", str(folders))
    x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
    words = np.array(["\x1b[2Ja", "b"])
    np.savez(folders / "a\x1b[2J.npz", x_train=x, y_train=y, x_test=x, y_test=y, label_words=words)
    assert main(["data", "check", str(folders / "a\x1b[2J.npz")]) == 0
    assert main(["list", "datasets"]) == 0
    assert main(["data", "check", "\x1b[2J"]) == 2
    assert main(["run", "\x1b[2J"]) == 2
    for arguments in (["report", "*", "\x1b[2J"], ["data", "\x1b[2J"]):
        with pytest.raises(SystemExit):
            main(arguments)
    x = np.arange(8.0).reshape(4, 2) * 1e5
    np.savez(folders / "b.npz", x_train=x, y_train=y, x_test=x, y_test=y, feature_names=["\x1b[2J", "b"])
    with pytest.warns(UserWarning, match=r"\\x1b\[2J up to"):
        federated("b", partition="iid", num_clients=2)
    with pytest.raises(InputError, match="unknown data set"):
        federated("a\x1b[2J", partition="iid", num_clients=2)
    said = capsys.readouterr()
    assert "\\x1b[2J" in said.out
    assert "\x1b" not in said.out + said.err
