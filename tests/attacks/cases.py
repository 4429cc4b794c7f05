"""What a case of the attack is, and how it is judged.

An attempt asserts what has to hold. It is clear if it ends so, or in one of the package's own errors that says what was
wrong. It is *silent* if an assertion fails: another result without a word, or something exposed. It is a *traceback* if
any other error comes, if it hangs, or if something right is refused.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import quickly

from fedlab_lite import cli
from fedlab_lite.util import FedlabError

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ("FEDLAB_CACHE", "FEDLAB_DATA", "FEDLAB_RUNS", "FEDLAB_FIGURES")
HANGS = 120  # seconds after which a case hangs
RUN = (sys.executable, "-m", "fedlab_lite")
SILENT, TRACEBACK = "silent", "traceback"


class Outcome(NamedTuple):
    """Of one case: what was tried, '' or what is not clear, of which kind it is, and how many tries it stands for."""

    case: str
    wrong: str = ""
    kind: str = TRACEBACK
    tries: int = 1


@contextlib.contextmanager
def in_time(seconds: int = HANGS) -> Iterator[None]:
    """End what takes longer with a `TimeoutError`; it needs the main thread."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"hangs: more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ends(case: str, attempt: Callable[[], object], words: str = "", may_pass: bool = False) -> Outcome:
    """Whether an attempt ends in an error of the package's own that contains one of these words ("a|b")."""
    try:
        with in_time():
            attempt()
    except FedlabError as error:
        said = any(word in str(error).lower() for word in words.lower().split("|"))
        return Outcome(case, "" if said else f"says nothing of {words!r}: {error}", SILENT)
    except AssertionError as error:
        return Outcome(case, f"{error}".strip()[:500] or _place(error), SILENT)
    except BaseException as error:
        return Outcome(case, f"{type(error).__name__} at {_place(error)}: {error}"[:500])
    return Outcome(case, "" if may_pass else "passes", SILENT)


def holds(case: str, attempt: Callable[[], object], may_refuse: bool = False) -> Outcome:
    """Whether what an attempt asserts holds; `may_refuse`: an error of the package's own is clear as well."""

    def unless_refused() -> None:
        try:
            attempt()
        except FedlabError as error:
            if not may_refuse:
                raise RuntimeError(f"refused: {error}") from error

    return ends(case, unless_refused, may_pass=True)


def _place(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(where.filename).name}:{where.lineno} `{where.line}`"


# --- the command line, here and in processes --------------------------------------------------------------------------


class Said(NamedTuple):
    """The exit code and the streams of a command."""

    code: int | None
    out: str
    err: str


def here(*arguments: str) -> Said:
    """A command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            code = cli.main([*arguments])
        except SystemExit as stopped:  # argparse's
            code = stopped.code
    return Said(code, out.getvalue(), err.getvalue())


def at_the_command_line(line: str) -> Callable[[], None]:
    """The command in this process; its refusal as an error."""

    def attempt() -> None:
        said = here(*line.split())
        if said.code:
            raise FedlabError(said.err)

    return attempt


def process(command: Iterable[str], *, seconds: int = HANGS, **options: object) -> Said:
    """A command in a process of its own, with these options of `subprocess`; code None: it hangs, and was killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    environment = {name: value for name, value in environment.items() if value is not None}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options
    started = subprocess.Popen([*command], env=environment, text=True, errors="backslashreplace", **pipes)
    try:
        out, err = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        started.kill()
        return Said(None, *(each or "" for each in started.communicate()))
    return Said(started.returncode, out or "", err or "")


def judged(case: str, said: Said, words: str = "", codes: tuple[int, ...] = (0, 2)) -> Outcome:
    """Whether a process ended with one of these codes, without a traceback, and said one of the words ("a|b")."""
    if said.code is None or said.code < 0 or "Traceback" in said.err or said.code not in codes:
        last = said.err.strip().splitlines()[-1:]
        return Outcome(case, f"code {said.code}: {' '.join(last)[:300]}")
    if not any(word.lower() in (said.out + said.err).lower() for word in words.split("|")):
        return Outcome(case, f"says nothing of {words!r}: {(said.err or said.out)[-300:]}", SILENT)
    return Outcome(case)


def side_by_side(attempts: Mapping[str, Callable[[], Outcome]]) -> Iterator[Outcome]:
    """Outcomes of attempts that wait for processes, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda attempt: attempt(), attempts.values())


# --- tests of the package as cases ------------------------------------------------------------------------------------


def units(*selected: str, words: str | None = None) -> Iterator[Outcome]:
    """The package's own tests of these files, each a case; `words`: of pytest's -k."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.xml"
        options = ["-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={file}", *(["-k", words] if words else [])]
        environment = {"XLA_FLAGS": quickly.FLAGS, "PYTHONPATH": None}
        command = [sys.executable, "-m", "pytest", "-q", *options, *selected]
        said = process(command, seconds=15 * 60, cwd=ROOT, env=environment)
        if not file.exists():
            yield Outcome(f"tests {' '.join(selected)}", f"code {said.code}: {said.out[-300:]}")
            return
        for test in ElementTree.parse(file).getroot().iter("testcase"):
            wrong = [each for each in test if each.tag in ("failure", "error")]
            said_of = wrong[0].get("message", "") if wrong else ""
            kind = SILENT if said_of.startswith(("AssertionError", "assert", "Failed")) else TRACEBACK
            yield Outcome(f"{test.get('classname')}.{test.get('name')}", said_of[:300], kind)


# --- a place of its own -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def elsewhere() -> Iterator[Path]:
    """A folder for all that is written."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ.update({name: str(Path(scratch) / name.lower()) for name in ENVIRONMENT})
        try:
            yield Path(scratch)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
