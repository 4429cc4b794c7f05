"""What may be said of the paper: scope, distance, and the checks that stand before an outcome."""

from dataclasses import replace

import pytest
from helpers import shares

from fedlab_lite.papers import presets, scope, verdicts
from fedlab_lite.papers.outcome import Verdict, decide, together
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.util import InputError

TABLE = Item("deprl", "tab01_accuracy")
COUNTED = Item("deprl", "tab03_resnet18")
TRAINED = Verdict("agrees", "", (Comparison("a", 1.0, parts=((0.1, 9.0),), n=3),))
FACT = Verdict("agrees", "", (Comparison("rows 3", 0.0, fact=True),))

SURE = {"parts": ((0.1, 50.0),), "n": 3, "unit": "points", "metric": "accuracy"}


def paper_runs(item=TABLE):
    return list(presets.settings(*item, "paper").values())


def test_the_papers_own_settings_are_scope_paper():
    assert scope.distance(TABLE, paper_runs()) == {}
    assert scope.scope_of(TABLE, TRAINED, paper_runs()) == "paper"


def test_a_part_of_the_papers_runs_is_not_its_setting():
    """Each of these runs is the paper's, but 3 of 4 are missing."""
    every = list(dict.fromkeys(paper_runs()))
    runs = every[::4]
    assert scope.distance(TABLE, runs) == {"runs": {"here": [len(runs)], "paper": [len(every)]}}
    assert scope.scope_of(TABLE, TRAINED, runs) == "reduced"


@pytest.mark.parametrize(
    ("change", "found", "close"),
    [
        ({"num_rounds": 40}, {"num_rounds": {"here": [40], "paper": [100]}}, "reduced"),
        ({"train_size": 6400}, {"train_size": {"here": [6400], "paper": [None]}}, "reduced"),
        ({"dataset": "motion"}, {"dataset": {"here": ["motion"], "paper": [*"?"]}}, "stand-in"),
    ],
)
def test_what_is_not_the_papers_is_named_and_lowers_the_scope(change, found, close):
    runs = [replace(run, **change) for run in paper_runs() if run.dataset == "fashion_mnist"]
    apart = scope.distance(TABLE, runs)
    assert apart.keys() == found.keys()
    (name,) = found
    assert apart[name]["here"] == found[name]["here"]
    assert "?" in found[name]["paper"] or apart[name]["paper"] == found[name]["paper"]
    assert scope.scope_of(TABLE, TRAINED, runs) == close


def test_an_option_of_an_algorithm_counts_under_its_name():
    (run,) = (
        each for name, each in presets.settings(*TABLE, "paper").items() if name == "fashion_mnist_ring_0.3/deprl"
    )
    options = dict(run.algorithm_options)
    apart = scope.distance(TABLE, [replace(run, algorithm_options=options | {"lr": 0.5})])
    assert apart == {"deprl.lr": {"here": [0.5], "paper": [0.01]}}


def test_counted_needs_facts_and_no_runs():
    assert scope.scope_of(COUNTED, FACT, []) == "counted"
    draws, seeds = (verdicts.observed("x", [1.0, 1.1, 0.9], 0.5, each=each) for each in ("draw", "seed"))
    assert scope.scope_of(COUNTED, together(FACT, draws), []) == "counted"
    assert scope.scope_of(COUNTED, together(FACT, seeds), []) == "stand-in"
    assert scope.scope_of(TABLE, FACT, paper_runs()) == "paper"
    assert scope.scope_of(COUNTED, TRAINED, []) == "stand-in"


@pytest.mark.parametrize(
    ("outcome", "close", "preset", "said"),
    [
        ("agrees", "counted", "laptop", "reproduced"),
        ("agrees", "counted", "quick", "seen"),
        ("differs", "paper", "paper", "contradicted"),
        ("agrees", "reduced", "laptop", "agrees here"),
        ("differs", "stand-in", "laptop", "differs here"),
        ("misprint", "counted", "paper", "misprint"),
        ("undecided", "paper", "paper", "undecided"),
        ("differs", "stand-in", "quick", "seen"),
        ("agrees", "paper", "quick", "seen"),
    ],
)
def test_the_word_that_a_scope_allows(outcome, close, preset, said):
    assert scope.word(outcome, close, preset, {}) == said


def test_firm_words_need_all_readings():
    readings = {"words": Verdict("differs", ""), "reference code": Verdict("agrees", "")}
    assert scope.word("agrees", "paper", "paper", readings) == "agrees here"
    assert scope.word("differs", "paper", "paper", readings) == "differs here"
    assert scope.word("differs", "paper", "paper", {"words": Verdict("differs", "")}) == "contradicted"


def test_a_result_that_claims_more_than_it_has_is_refused():
    result = {"scope": "paper", "word": "reproduced", "distance": {"lr": {"here": [0.1], "paper": [0.01]}}}
    with pytest.raises(InputError, match="scope 'paper', but lr are not the paper's"):
        scope.check(result)
    with pytest.raises(InputError, match="'reproduced' is a word for scope counted and paper, not 'reduced'"):
        scope.check(result | {"scope": "reduced"})
    scope.check(result | {"scope": "reduced", "word": "agrees here"})


def test_an_undecided_verdict_keeps_the_reason_that_no_comparison_gives():
    sure, bare = decide([Comparison("a", 9.0, pair=("a", "b"), **SURE)]), Verdict("undecided", "it did not run")
    found = scope.judge(TABLE, "laptop", together(sure, bare), {"a": shares(0.5)}, [], {})[0]
    assert (found.outcome, found.reason) == ("undecided", "it did not run")


def test_what_still_moves_over_the_papers_rounds_is_undecided():
    """100 rounds at the preset paper, 40 here: 60 rounds at -0.1 points take a lead of 5 points away."""
    runs = {"a": shares(0.5)}
    for lead, expected in ((5.0, "undecided"), (7.0, "agrees")):
        moving = Comparison(
            "a against b", lead, parts=((0.1, 50.0),), n=3, quarters=(-1.0, -1.0), rounds=40, unit="points"
        )
        found, _, _ = scope.judge(TABLE, "laptop", decide([moving]), runs, [], {})
        assert found.outcome == expected
    less = scope.judge(TABLE, "laptop", decide([replace(moving, difference=1.0)]), runs, [], {})[0]
    assert "but it moved by -1.0 in the last 10 rounds, and preset paper has 60 more" in less.reason


def test_data_that_stand_for_the_papers_have_the_rounds_of_those():
    """FEMNIST has 150 rounds in the paper and Shakespeare 400: at round 60 of Fashion-MNIST 90 are left."""
    table = Item("fedeq", "tab03_accuracy")
    about = {"parts": ((0.01, 50.0),), "n": 3, "quarters": (-1.0, -1.0), "rounds": 60, "unit": "points"}
    for data, left in (("fashion_mnist", 90), ("cifar10", 90), ("shakespeare", 340)):
        moving = Comparison("a", 0.5, data=data, **about)
        found = scope.judge(table, "laptop", decide([moving]), {"a": shares(0.5)}, [], {})[0]
        assert f"preset paper has {left} more" in found.reason


def test_all_data_at_laptop_have_rounds_in_the_paper():
    for paper in presets.PAPERS:
        items, stand = presets.items(of=[paper]), presets.load(paper).get("stands_for", {})
        laptop, of_paper = (
            {run.dataset for item in items for run in presets.settings(*item, preset).values()}
            for preset in ("laptop", "paper")
        )
        assert {stand.get(data, data) for data in laptop} <= of_paper, paper


def test_where_the_movement_is_not_known_the_sentence_has_the_rounds():
    run = replace(shares(0.5, 3), constant=0.1)
    found = verdicts.observed("residual", [0.5, 0.6, 0.55], 1.0, above=False, runs={"a": run})
    said = scope.judge(TABLE, "laptop", found, {"a": shares(0.5)}, [], {})[0]
    assert (said.outcome, said.reason) == (
        "agrees",
        "residual: 0.55 ± 0.0289 (3 seeds, less than 1 asked, 2 of 100 rounds); 1 of 1 as claimed",
    )


def test_every_claim_is_quoted_with_its_place():
    for item in presets.items():
        about = presets.item(*item)
        assert 3 <= len(about["quote"].split()) <= 60, item
        assert about["where"], item


@pytest.mark.parametrize("key", ["claim", "quote", "where"])
def test_a_claim_without_a_quotation_is_refused(key):
    about = presets.item(*TABLE)
    presets.check_claims("deprl", {"a": about})
    for wrong in (about | {key: ""}, {name: value for name, value in about.items() if name != key}):
        with pytest.raises(InputError, match=f"deprl/a has no `{key}`"):
            presets.check_claims("deprl", {"a": wrong})


def test_distances_are_values_that_json_has():
    for item in presets.items("deprl/*"):
        for each in scope.distance(item, presets.settings(*item, "laptop").values()).values():
            assert all(isinstance(value, int | float | str | bool | tuple | None) for value in each["here"])
