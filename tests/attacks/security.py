"""Section A: what text from elsewhere could do to a reader: on pages, in commands, in the terminal."""

import json
import math
import random
import shlex
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from helpers import history
from util.test_escaping import ITEM, Tags, result_with, tokens_of

from attacks.cases import Outcome, here, holds, units
from fedlab_lite.data import federated, npz
from fedlab_lite.engine import shown
from fedlab_lite.papers import book_pages, first_cells, gallery, report, results, variants
from fedlab_lite.papers.outcome import Verdict
from fedlab_lite.util import FedlabError, files, progress
from fedlab_lite.util.text import plain

PIECES = (
    *("<script>", "</script>", "<img src=x onerror=alert(1)>", "<!--", "-->", "&lt;", "<a href='", "javascript:", "<"),
    *("|", "\n| --- |", "`", "``", "```", "~~~", "*", "_", "**", "[a](b)", "![a](b)", "](", "<http://x>", "$", "$$"),
    *("{eval-rst}", "```{raw} html\n", "{raw}`x`", "# ", "\n\n", "\r\n", "    ", "> ", "- ", "<!-- result:end -->"),
    *("'", '"', "\\", ";", "&&", "$(touch owned)", "`touch owned`", "%s", "{0}", "\0", "-p", "--", "~", "../", "$HOME"),
    *(
        "\x1b[2J",
        "\x1b]0;t\x07",
        "\x9b31m",
        "\x08",
        "\r",
        "\u202e",
        "\u2066",
        "\ufeff",
        "\u200b",
        "é",
        "文",
        "a",
        "x y",
    ),
)
KEEPS = "\n\t"


def hostile(rng: random.Random, longest: int = 6) -> str:
    return "".join(rng.choices(PIECES, k=rng.randint(1, longest)))


def unseen(text: str) -> set[str]:
    """Characters that a terminal may obey."""
    return {each for each in text if not each.isprintable() and each not in KEEPS}


# --- text on pages ----------------------------------------------------------------------------------------------------


def pages_of(poison: str) -> list[list]:
    """The headings, tables, links and tags of everything that shows a result with this text in all fields."""
    result = result_with(poison)
    markdown = [report.page("fedeq", {ITEM: result}), first_cells.committed(ITEM, result)]
    markdown.append(gallery.markdown({ITEM: result}))
    note = book_pages._how_it_ran(ITEM, {"preset": "quick", "dataset": f"x{poison}"}, None)  # its text is Markdown
    markdown += [Verdict("agrees", f"so{poison}")._repr_markdown_(), note, book_pages._with_note("# a\n\nb", note)]
    pictures = gallery.write_page({ITEM: result}).read_text(encoding="utf-8")
    card = history([[0.1, 0.5]], seeds=(0,))
    object.__setattr__(card, "about", {"dataset": f"d{poison}", "model": "m", "algorithm": "a"})
    object.__setattr__(card, "data_source", f"s{poison}")
    html = [pictures, card._repr_html_(), shown.card(f"t{poison}", {f"n{poison}": f"v{poison}"}, [])]
    return [tokens_of(text) for text in markdown] + [Tags(text).found for text in html]


def in_pages(poison: str) -> None:
    for number, (plain_one, poisoned) in enumerate(zip(pages_of("x"), pages_of(poison), strict=True)):
        assert plain_one == poisoned, f"page {number} has other parts with {poison!r}"


def as_a_file(poison: str) -> None:
    """A result of a run with changed parameters whose file has such a name."""
    name = f"{ITEM.stem},{poison}".replace("/", "").replace("\0", "")[:80]
    file = files.write_atomic(
        files.drafts_dir() / "quick" / ITEM.paper / f"{name}.json", json.dumps(result_with("x")).encode()
    )
    found = results.drafts()
    file.unlink()
    assert len(found) == 1
    text = gallery.write_page(found).read_text(encoding="utf-8")
    assert [tag for tag, _ in Tags(text).found] == [tag for tag, _ in Tags(gallery_of_one()).found]
    assert not unseen("\n".join(report.lines(found, full=True)).replace(poison, plain(poison)))


def gallery_of_one() -> str:
    return gallery.write_page({ITEM: result_with("x")}).read_text(encoding="utf-8")


def in_a_command(poison: str) -> None:
    """The printed command is one command whose parameter is the text."""
    text = report.page("fedeq", {ITEM: result_with(poison)})
    (line,) = [each for each in text.splitlines() if "fedlab run" in each]
    words = shlex.split(line.strip("` "))
    assert len(words) == 8, words
    assert variants.parsed([(words[6], words[7])]) == {"num_rounds": poison}
    name = variants.name_of("fig04", {"dataset": poison})
    assert Path(name).name == name, f"a file elsewhere: {name}"
    assert not unseen(name)
    assert len(name.encode()) < 200


def in_a_bar(poison: str) -> None:
    """Jupyter's bar and the terminal's."""
    drawn: list[str] = []

    class Line:
        def __init__(self) -> None:
            self.runs: list = []

        show = staticmethod(drawn.append)

    kernel = type("Kernel", (), {"execution_count": object()})
    before = progress._Line, progress._kernel, progress.PAUSE
    progress._Line, progress._kernel, progress.PAUSE = Line, kernel, -1.0
    try:
        with progress._in_a_cell(poison, 3, "rounds") as tick:
            tick(1, {f"loss{poison}": [0.1, 0.2]})
    finally:
        progress._Line, progress._kernel, progress.PAUSE = before
    assert {tag for text in drawn for tag, _ in Tags(text).found} <= {"progress", "br", "svg", "polyline"}


# --- text in the terminal ---------------------------------------------------------------------------------------------


def in_the_terminal(folder: Path, rng: random.Random) -> None:
    """Names of files, folders, labels, columns and owners, and results, through the commands that print them."""
    label, column, owner = (hostile(rng, 3).replace("\0", "").replace("/", "") or "a" for _ in range(3))
    rows = [f"{k},{k * k % 7},{quoted(label if k % 2 else 'no')},{quoted(owner)}" for k in range(12)]
    table = folder / "t.csv"
    table.write_text("\n".join([f"a,{quoted(column)},label,owner", *rows]), encoding="utf-8", newline="")
    output = folder / f"t{rng.random()}.npz".replace("0.", "")
    said = [here("data", "import", str(table), "--output", str(output), *rng.choice(([], ["--owner", "owner"])))]
    x, y = np.arange(8.0).reshape(4, 2) * 1e5, np.array([0, 1, 0, 1])
    name = f"zz{plain_name(hostile(rng, 3))}"  # which no notebook matches
    about = {"label_words": [f"a{label}", "b"], "feature_names": [f"c{column}", "d"]}
    npz.own_file(name).parent.mkdir(parents=True, exist_ok=True)
    np.savez(npz.own_file(name), x_train=x, y_train=y, x_test=x, y_test=y, **about)
    file = files.figures_dir() / ITEM.paper / f"{ITEM.stem}.json"
    files.write_atomic(file, json.dumps(result_with(hostile(rng))).encode())
    commands = ("data check", "data status", "list datasets", "report --full", "list", "run", "compute", "data fetch")
    for command in commands:
        names = [name] if command in ("data check", "list", "run", "compute", "data fetch") else []
        said.append(here(*command.split(), *names))
    npz.own_file(name).unlink()
    for each in said:
        assert not unseen(each.out + each.err), f"{unseen(each.out + each.err)} reach the terminal: {each.err[:200]!r}"


def in_a_warning(poison: str) -> None:
    """What importing and loading warn of, and how objects show themselves."""
    x, y = np.arange(40.0).reshape(20, 2) * 1e5, np.arange(20) % 2
    name = plain_name(poison)
    npz.own_file(name).parent.mkdir(parents=True, exist_ok=True)
    about = {"feature_names": [f"c{poison}".replace("\0", ""), "d"]}
    np.savez(npz.own_file(name), x_train=x, y_train=y, x_test=x, y_test=y, **about)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            data = federated(name, partition="iid", num_clients=2)
        except FedlabError:  # it may not have such a name
            return
        finally:
            npz.own_file(name).unlink()
    assert not unseen(" ".join(str(each.message) for each in caught))
    assert not unseen(repr(data)), repr(data)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def plain_name(text: str) -> str:
    """A text that a file's name can have."""
    return text.replace("/", "").replace("\0", "").strip(".")[:40] or "a"


TESTS = ("tests/util/test_escaping.py", "tests/util/test_files.py", "tests/papers/test_book.py", "tests/test_cli.py")
WORDS = "escaping or test_files or the_site or on_this_machine_alone or typed_literals"


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    rng = random.Random(seed)

    def draws(number: int, what: str, attempt: Callable[[str], None]) -> Iterator[Outcome]:
        for _ in range(math.ceil(number * share)):
            poison = hostile(rng)
            yield holds(f"{what}: {poison!r}", lambda poison=poison: attempt(poison))

    yield from draws(300, "on pages", in_pages)
    yield from draws(300, "in a printed command", in_a_command)
    yield from draws(100, "in the name of a file", as_a_file)
    yield from draws(200, "in a bar of Jupyter", in_a_bar)
    yield from draws(200, "in warnings", in_a_warning)
    for number in range(math.ceil(60 * share)):
        yield holds(f"in the terminal, {number}", lambda: in_the_terminal(folder, rng), may_refuse=True)
    for text in (hostile(rng, 20) for _ in range(math.ceil(1000 * share))):
        yield holds(f"shown {text!r}", lambda text=text: None if not unseen(plain(text)) else 1 / 0)
    if share == 1:
        yield from units(*TESTS, words=WORDS)
