"""Answers to the exercises of the course, as readers write them: each is tried with the lesson's own checker.

A lesson is not run as a whole. A checker gets the statements before it that it needs: of the cells' code, those that
define a name that the checker uses, or a name that they use.
"""

import ast
import contextlib
import json
import linecache
import symtable
import textwrap
import warnings
from dataclasses import dataclass, field
from functools import cache

from fedlab_lite.papers import notebooks
from fedlab_lite.papers.answers import Unanswered
from fedlab_lite.util import files


@dataclass(frozen=True)
class Answers:
    """Right answers to an exercise, and wrong ones with words of the message that each has to get.

    An answer is the expression or the statements in place of the reader's `return ...`, or a whole function.
    """

    lesson: int
    right: list[str]
    wrong: dict[str, str] = field(default_factory=dict)


@cache
def lesson(number: int) -> list[dict]:
    (file,) = files.notebooks_dir().glob(f"learn/{number:02}_*.ipynb")
    return [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]


def names(node: ast.stmt) -> tuple[set[str], set[str], set[str]]:
    """The global names that a statement sets, those that it changes in place, and those that it uses."""
    table = symtable.symtable(ast.unparse(node), "lesson", "exec")
    sets = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    uses = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    inner = table.get_children()
    while inner:
        scope = inner.pop()
        uses |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() and symbol.is_referenced()}
        inner += scope.get_children()
    stored = [
        part.value
        for part in ast.walk(node)
        if isinstance(getattr(part, "ctx", None), ast.Store) and "value" in part._fields
    ]
    changes = {part.id for value in stored for part in ast.walk(value) if isinstance(part, ast.Name)} & uses
    return sets, changes, uses


def needed(statements: list[ast.stmt], name: str) -> list[ast.stmt]:
    """Of the statements before and including the definition of `name`: those that it needs, and all imports."""
    wanted, kept = {name}, []
    for node in reversed(statements):
        sets, changes, uses = names(node)
        whole = not isinstance(node, ast.AugAssign | ast.For | ast.With | ast.If)  # the old value is not needed
        if (sets | changes) & wanted or isinstance(node, ast.Import | ast.ImportFrom):
            kept.append(node)
            wanted = (wanted - sets if whole else wanted) | uses
    return kept[::-1]


@cache
def checker(number: int, name: str) -> tuple[dict, str]:
    """What a lesson's checker lives in, itself included, and the reader's cell."""
    statements: list[ast.stmt] = []
    for cell in lesson(number):
        source, tags = notebooks.source(cell), cell["metadata"].get("tags", [])
        if "exercise" in tags and f"{name}(" in source:
            namespace: dict = {}
            whole = ast.Module(needed(statements, name), [])
            exec(compile(whole, f"lesson {number}", "exec"), namespace)
            return namespace, source
        if "exercise" not in tags:
            statements += ast.parse(source).body
    raise LookupError(name)


def written(place: str, answer: str) -> str:
    """A reader's cell with the answer in it."""
    cell = place[: place.rindex("check_")].rstrip()
    if cell.partition("(")[0] in answer:
        return answer
    if "return ..." not in cell:
        return cell.replace("...", answer)
    with contextlib.suppress(SyntaxError):
        ast.parse(answer, mode="eval")
        return cell.replace("return ...", f"return {answer}")
    return cell.replace("    return ...", textwrap.indent(answer, "    "))


def said(name: str, answers: Answers, answer: str) -> str | None:
    """What the checker says of an answer, None if it is right."""
    namespace, place = checker(answers.lesson, name)
    source, file, namespace = written(place, answer), f"<{name}>", dict(namespace)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)
    reader = place[place.rindex("check_") :].partition("(")[2].rstrip(" )\n")
    try:
        with warnings.catch_warnings(action="ignore"):
            return namespace[name].why(namespace[reader])
    except Unanswered:
        return "no answer yet"


def tried(name: str, answers: Answers) -> list[str]:
    """What is not as it should be: right answers that are refused, wrong ones that are not, or in other words.

    At least two right answers and five wrong ones are asked for.
    """
    bad = [f"refused: {answer}\n  {why}" for answer in answers.right if (why := said(name, answers, answer))]
    if len(answers.right) < 2 or len(answers.wrong) < 5:
        bad.append(f"few answers: {len(answers.right)} right and {len(answers.wrong)} wrong ones")
    for answer, word in answers.wrong.items():
        why = said(name, answers, answer)
        if why is None:
            bad.append(f"accepted: {answer}")
        elif word not in why:
            bad.append(f"without {word!r}: {answer}\n  {why}")
    return bad
