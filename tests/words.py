"""The check of the words that people read: plain English, short sentences, no word that is known only here.

    python tests/words.py   # prints what was found, with file and line; `make lint` runs it

It reads docstrings, comments and messages of the package, docstrings and comments of the tests, comments, titles and
claims of TOML files, pages, and the notebooks. Of the notebooks only the lessons' texts need short sentences. It does
not read quotations of a paper, or text that is generated.
"""

import ast
import io
import json
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRIVATE = (  # words with a meaning that only the project's authors know, and riddles
    *("nobody", "the mend", "how dear", "to and fro", "stands still", "stand still", "drawers", "made to order"),
    *("dealt", "the echo", "press its key", "excused by", "everybody", "a seed each"),
    "constant answer",  # the majority baseline
)
_PRIVATE = re.compile(rf"\b({'|'.join(PRIVATE)})\b")
_COUNTED = """
    batch batches bits bytes classes client clients devices epoch epochs file files head heads images iteration
    iterations label labels layers lines links message messages minutes model models neighbours notebook notebooks
    number numbers parameters pass passes points product products program programs rounds row rows sample samples second
    seconds seed seeds step steps term terms test tests value values weights words worker workers once twice times
"""
_UNITS = """
    batch class client column device draw epoch figure file layer line link message minute notebook number page paper
    parameter part row round run sample second seed step task test token trial user worker writer
"""
_LATER = r"(?!['’]| (of|has|that|is|who)\b)"  # what follows where "a" is right: "rows a client has"
PER = re.compile(rf"\b({'|'.join(_COUNTED.split())}) an? (local )?({'|'.join(_UNITS.split())})\b{_LATER}")
LONGEST = 25  # words in a sentence
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/pull_request_template.md", "notebooks/README.md")
PAGES += ("notebooks/your_own_data.md",)
ABOUT = ("title", "claim", "question")  # of an item in papers/*.toml; `quote` is the paper's
# The code of these notebooks has older words. A committed result has its hash, so it changes with the next run.
OLDER = ("tab02_generalization", "tab08_generalization_ps", "fig10_memory_time", "fig03_output_updates")

Text = tuple[int, str, bool]  # line, or number of the cell; text; whether its sentences have to be short


def docstrings(tree: ast.AST) -> dict[ast.Constant, str]:
    """The docstrings of a module, its classes and functions: the node and the text."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return {node.body[0].value: text for node in nodes if (text := ast.get_docstring(node))}


def comments(code: str) -> Iterator[Text]:
    """The comments of Python code; those on successive lines of their own are one text."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, own = token.start[0], token.line.lstrip().startswith("#")
        if block and not (own and block[-1][0] == line - 1):
            yield block[0][0], " ".join(text for _, text in block), True
            block = []
        block.append((line, token.string.lstrip("# ")))
    if block:
        yield block[0][0], " ".join(text for _, text in block), True


def messages(tree: ast.AST) -> Iterator[Text]:
    """The strings of Python code with a space in them, without docstrings; a value in an f-string is an x."""
    known = set(docstrings(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            known |= set(node.values)
            parts = [each.value if isinstance(each, ast.Constant) else "x" for each in node.values]
            yield node.lineno, "".join(map(str, parts)), False
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in known and " " in node.value:
            yield node.lineno, node.value, False


def of_python(code: str, strings: bool = True) -> Iterator[Text]:
    tree = ast.parse(code)
    yield from ((node.lineno, prose(text), True) for node, text in docstrings(tree).items())
    yield from comments(code)
    yield from messages(tree) if strings else ()


def of_toml(text: str) -> Iterator[Text]:
    """The comments of a TOML file, and what it says of its items."""
    for line, content in enumerate(text.splitlines(), 1):
        if found := re.search(r"(?:^|\s)# (.*)", content):
            yield line, found[1], False
    for item in tomllib.loads(text).get("items", {}).values():
        yield from ((0, item[key], False) for key in ABOUT if key in item)


def of_page(text: str) -> Iterator[Text]:
    """The paragraphs of a page in Markdown, without code, tables that are generated, and quotations (after >)."""
    blank = lambda found: "\n" * found[0].count("\n")  # noqa: E731
    text = re.sub(r"```.*?```|<!-- (\w+):begin -->.*?<!-- \1:end -->", blank, text, flags=re.DOTALL)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip() and not paragraph.lstrip().startswith(">"):
            yield line, paragraph, True
        line += paragraph.count("\n")


def of_notebook(file: Path) -> Iterator[Text]:
    """The texts of a notebook's cells."""
    for number, cell in enumerate(json.loads(file.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield from ((number, text, file.parent.name == "learn") for _, text, _ in of_page(source))
        elif file.stem not in OLDER:
            yield from ((number, text, False) for _, text, _ in of_python(source))


def texts(file: Path) -> Iterator[Text]:
    """The texts of a file that people read: the line (of a notebook the cell), and the text."""
    if file.suffix == ".ipynb":
        return of_notebook(file)
    content = file.read_text()
    if file.suffix == ".py":
        return of_python(content, strings="tests" not in file.relative_to(ROOT).parts)
    return of_toml(content) if file.suffix == ".toml" else of_page(content)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text: entries of lists and cells of tables are sentences of their own."""
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"\$\$.*?\$\$", "\n\n", text, flags=re.DOTALL)  # a formula in a line of its own ends a sentence
    for entry in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)|(?<=.)\|", text):
        yield from re.split(r"(?<=[.!?:;])[\"”)*]*\s+(?=\W*[A-Z])|(?<=[.!?])\s", " ".join(entry.split()))


def prose(docstring: str) -> str:
    """A docstring without examples, tables and formulas; each argument is a paragraph."""
    examples = r"^( *)>>>.*(\n\1\S.*)*|^examples:(\n .*)*|^( *)\.\. math::(\n\4 .*)*"  # and formulas
    text = re.sub(examples, "", docstring, flags=re.MULTILINE)
    text = re.sub(r"(?<=\n\n)(    .*(\n|$))+", "", text)
    return re.sub(r"^(?= {0,2}\w+(, \w+)*: ?)", "\n", text, flags=re.MULTILINE)


def words(sentence: str) -> int:
    """The number of words; code and formulas are one word each."""
    return len(re.findall(r"\w(?:[\w'’-]|[.,](?=\d))*", re.sub(r"`[^`]*`|\$[^$]*\$", "x", sentence)))


def wrong(text: str, short: bool = False) -> list[str]:
    """What is wrong with a text: private words, "a" in place of "per", and long ones among `short` sentences."""
    plain = " ".join(text.lower().split())
    found = [f"{match[0]!r} is not plain English" for match in _PRIVATE.finditer(plain)]
    found += [f"{match[0]!r}: write 'per'" for match in PER.finditer(plain)]
    if short:
        found += [f"{words(each)} words: {each}" for each in sentences(text) if words(each) > LONGEST]
    return found


def files() -> Iterable[Path]:
    """The files that people read."""
    for folder, pattern in (("fedlab_lite", "*.py"), ("fedlab_lite", "*.toml"), ("tests", "*.py")):
        yield from sorted((ROOT / folder).rglob(pattern))
    yield from sorted((ROOT / "notebooks").glob("*/*.ipynb"))
    yield from (ROOT / name for name in (*PAGES, "conftest.py", "pyproject.toml"))


def check() -> list[str]:
    """All that is wrong, each with its place."""
    own = (Path(__file__), Path(__file__).with_name("test_words.py"))  # they name the words
    found = []
    for file in files():
        place = file.relative_to(ROOT)
        for line, text, short in texts(file) if file not in own else ():
            found += [f"{place}:{line}: {each}" for each in wrong(text, short and place.parts[0] != "tests")]
    return found


if __name__ == "__main__":
    sys.exit("\n".join(check()) or 0)
