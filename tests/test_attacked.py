"""A small sample of `make attack`: every part of it, in seconds."""

import attack
import pytest


@pytest.fixture
def folder():
    with attack.elsewhere() as folder:
        yield folder


def wrong(outcomes):
    found = list(outcomes)
    assert found
    return [outcome for outcome in found if outcome.wrong]


@pytest.mark.slow
def test_altered_files(folder):
    assert not wrong(attack.mutations(350, 1, folder))


@pytest.mark.slow
def test_bad_inputs(folder):
    assert not wrong(attack.bad_inputs("fedeq/fig04*"))


@pytest.mark.slow
def test_a_full_disk(folder):
    """Kills, and two processes at once: `tests/runs/test_runner.py` has them."""
    assert not wrong(attack.full_disks(1, 1, folder / "full"))


def test_what_is_not_clear_is_counted():
    def bug():
        raise KeyError("a")

    outcomes = [attack.ends("a bug", bug), attack.ends("no error", dict), attack.Outcome("fine", tries=3)]
    assert [bool(outcome.wrong) for outcome in outcomes] == [True, True, False]
    assert attack.table({"some": iter(outcomes)}) == 2
    assert attack.ends("other words", attack.at_the_command_line("run zzz"), "near").wrong
    assert not attack.ends("these words", attack.at_the_command_line("run zzz"), "near|no notebook").wrong
