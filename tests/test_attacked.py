"""A small sample of `make attack`, in seconds."""

import attack
import pytest
from attacks import (
    bad_input,
    command_line,
    correctness,
    faults,
    later,
    pictures,
    programs,
    security,
    store,
    tables,
    writers,
)
from attacks.cases import (
    SILENT,
    TRACEBACK,
    Outcome,
    Said,
    at_the_command_line,
    elsewhere,
    ends,
    holds,
    judged,
)

SAMPLE = {  # the other parts compile more than some seconds allow
    faults.mutations: 0.03,
    bad_input.cases: 0.5,
    security.cases: 0.01,
    programs.cases: 0.01,
    pictures.cases: 0.02,
    tables.cases: 0.02,
    store.cases: 0.01,
    writers.cases: 0.01,
    command_line.cases: 0.03,
    correctness.cases: 0.01,
    later.cases: 0.01,
}


@pytest.fixture
def folder():
    with elsewhere() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("part", SAMPLE, ids=lambda part: f"{part.__module__}.{part.__name__}")
def test_a_sample(part, folder):
    found = list(part(folder, 1, SAMPLE[part]))
    assert found
    assert not [outcome for outcome in found if outcome.wrong]


@pytest.mark.slow
def test_a_full_disk(folder):
    """Kills, and two processes at once: `tests/runs/test_runner.py` has them."""
    assert not [outcome for outcome in faults.full_disks(folder, 1, 0.05) if outcome.wrong]


def fails():
    assert 1 == 2, "another number"


def test_what_is_not_clear_is_counted_by_its_kind():
    outcomes = [ends("a bug", lambda: {}["a"]), ends("no error", dict), holds("a wrong number", fails)]
    outcomes += [Outcome("fine", tries=3), ends("other words", at_the_command_line("run zzz"), "near")]
    outcomes += [ends("these words", at_the_command_line("run zzz"), "near|no notebook")]
    outcomes += [holds("refused", lambda: at_the_command_line("run zzz")()), holds("may be", lambda: None, True)]
    outcomes += [
        judged("hangs", Said(None, "", "")),
        judged("dies", Said(-9, "", "")),
        judged("words", Said(0, "a", ""), "b"),
    ]
    kinds = [outcome.wrong and outcome.kind for outcome in outcomes]
    assert kinds == [TRACEBACK, SILENT, SILENT, "", SILENT, "", TRACEBACK, "", TRACEBACK, TRACEBACK, SILENT]
    first, *cases = attack.line("X", outcomes, 1.0).splitlines()
    assert first.split() == ["X", "13", "5", "4", "4", "1"]
    assert cases[1] == "    silent, no error: passes"


def test_what_hangs_ends(monkeypatch):
    import time

    from attacks import cases

    with pytest.raises(TimeoutError, match="hangs"), cases.in_time(1):
        time.sleep(5)
