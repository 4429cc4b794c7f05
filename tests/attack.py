"""An attack on the suite, by sections; prints a table of what came of it.

    make attack                              # all of it, about a quarter of an hour on two cores
    python tests/attack.py B D --share 0.1   # some sections, with a tenth of the draws; --seed N draws others

| section | attacks |
| --- | --- |
| A | what text, files and the network could do to a reader: scripts, commands, permissions, open ports |
| B | import of pictures, tables and arrays whose right content is known |
| C | JAX' configuration and numbers of devices: one name, one number |
| D | the store and files: other versions, crafted and damaged files, links, two writers |
| E | the command line: streams, locales, homes, garbage |
| F | rounds against NumPy on random rows, privacy, graphs |
| H | what users of such packages report: few rows, odd labels and types, graphs, solvers |
| I | sizes that no machine has, and several processes |
| J | what a second look found: figures that would be replaced, integers that wrap, ignored settings |
| bad input, altered files, full disks, two writers, kills | values that cannot be, and interruptions |

A case is *clear* if it ends in the result that it must have, or in one of the package's own errors, which names what
was wrong. It is *silent* if it ends in another result without a word, or exposes something. It is a *traceback* if it
ends in any other error, or hangs. What is not clear is printed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import quickly
from attacks import (
    bad_input,
    command_line,
    configuration,
    correctness,
    faults,
    later,
    pictures,
    programs,
    reports,
    security,
    sizes,
    store,
    tables,
    writers,
)
from attacks.cases import SILENT, Outcome, elsewhere, process

Part = Callable[[Path, int, float], Iterator[Outcome]]  # folder, seed, share of the draws
SECTIONS: dict[str, tuple[Part, ...]] = {  # the longest first
    "kills": (faults.kills,),
    "C": (configuration.cases,),
    "F": (correctness.cases,),
    "I": (sizes.cases,),
    "D": (store.cases, writers.cases),
    "E": (command_line.cases,),
    "H": (reports.cases,),
    "J": (later.cases,),
    "A": (security.cases, programs.cases),
    "B": (pictures.cases, tables.cases),
    "bad input": (bad_input.cases,),
    "altered files": (faults.mutations,),
    "full disks": (faults.full_disks,),
    "two writers": (faults.two_writers,),
}


COMPILED_QUICKLY = ("F", "D", "H", "J", "bad input")


def found(section: str, seed: int, share: float) -> list[Outcome]:
    """The outcomes of a section, which writes nowhere but to a folder of its own."""
    with elsewhere() as folder:
        return [outcome for part in SECTIONS[section] for outcome in part(folder, seed, share)]


def in_a_process(section: str, seed: int, share: float) -> tuple[list[Outcome], float]:
    """The same, computed in a process of its own, and the seconds that it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        command = [sys.executable, __file__, section, "--seed", str(seed), "--share", str(share), "--write", str(file)]
        flags = {"XLA_FLAGS": quickly.FLAGS} if section in COMPILED_QUICKLY else {}
        said = process(command, seconds=20 * 60, env=flags)
        if file.exists():
            outcomes = [Outcome(*each) for each in json.loads(file.read_text())]
        else:
            outcomes = [Outcome(f"section {section}", f"code {said.code}: {said.err[-1000:]}")]
    return outcomes, time.monotonic() - began


def line(section: str, outcomes: list[Outcome], seconds: float) -> str:
    """A row of the table, and a line for each case that is not clear."""
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    silent, tries = sum(outcome.kind == SILENT for outcome in wrong), sum(outcome.tries for outcome in outcomes)
    numbers = f"{tries:>8,}{tries - len(wrong):>8,}{silent:>8}{len(wrong) - silent:>11}{seconds:>9.0f}"
    cases = (f"    {outcome.kind}, {outcome.case}: {outcome.wrong}" for outcome in wrong)
    return "\n".join([f"{section:<16}{numbers}", *cases])


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("sections", nargs="*", metavar="SECTION", help="default: all")
    about.add_argument("--seed", type=int, default=0, metavar="N")
    about.add_argument("--share", type=float, default=1, metavar="X", help="of the draws; default: 1")
    about.add_argument("--write", type=Path, help=argparse.SUPPRESS)  # the outcomes of one section, for `in_a_process`
    asked = about.parse_args()
    if unknown := set(asked.sections) - SECTIONS.keys():
        about.error(f"unknown sections {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    sys.stdout.reconfigure(errors="backslashreplace")  # a case may be called by bytes that are no text
    if asked.write:
        asked.write.write_text(json.dumps(found(*asked.sections, asked.seed, asked.share)))
        return 0
    print(f"{'section':<16}{'tries':>8}{'clear':>8}{'silent':>8}{'traceback':>11}{'seconds':>9}", flush=True)
    every: list[Outcome] = []
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        wanted = asked.sections or SECTIONS
        waiting = {each: pool.submit(in_a_process, each, asked.seed, asked.share) for each in wanted}
        for section in sorted(waiting, key=str.lower):
            outcomes, seconds = waiting[section].result()
            every += outcomes
            print(line(section, outcomes, seconds), flush=True)
    print(line("all", [outcome._replace(case="") for outcome in every], time.monotonic() - began).splitlines()[0])
    return 1 if any(outcome.wrong for outcome in every) else 0


if __name__ == "__main__":
    sys.exit(main())
