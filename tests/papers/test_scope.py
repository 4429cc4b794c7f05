"""What may be said of the paper: scope, distance, and the checks that stand before an outcome."""

from dataclasses import replace

import pytest
from helpers import history

from fedlab_lite.papers import presets, scope, verdicts
from fedlab_lite.papers.outcome import Verdict, decide, together
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.statistics import Comparison
from fedlab_lite.util import InputError

TABLE = Item("deprl", "tab01_accuracy")
COUNTED = Item("deprl", "tab03_resnet18")
TRAINED = Verdict("agrees", "", (Comparison("a", 1.0, error=0.1, freedom=9.0, n=3),))
FACT = Verdict("agrees", "", (Comparison("rows 3", 0.0, fact=True),))

SURE = {"error": 0.1, "freedom": 50.0, "n": 3, "unit": "points", "metric": "accuracy"}


def paper_runs(item=TABLE):
    return list(presets.settings(*item, "paper").values())


def test_the_papers_own_settings_are_scope_paper():
    assert scope.distance(TABLE, paper_runs()) == {}
    assert scope.scope_of(TABLE, "paper", TRAINED, paper_runs()) == "paper"


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
    assert scope.scope_of(TABLE, "paper", TRAINED, runs) == close


def test_an_option_of_an_algorithm_counts_under_its_name():
    (run,) = (
        each for name, each in presets.settings(*TABLE, "paper").items() if name == "fashion_mnist_ring_0.3/deprl"
    )
    options = dict(run.algorithm_options)
    apart = scope.distance(TABLE, [replace(run, algorithm_options=options | {"lr": 0.5})])
    assert apart == {"deprl.lr": {"here": [0.5], "paper": [0.01]}}


def test_counted_needs_facts_and_no_runs():
    assert scope.scope_of(COUNTED, "paper", FACT, []) == "counted"
    assert scope.scope_of(TABLE, "paper", FACT, paper_runs()) == "paper"
    assert scope.scope_of(COUNTED, "laptop", TRAINED, []) == "stand-in"


@pytest.mark.parametrize(
    ("outcome", "close", "preset", "said"),
    [
        ("agrees", "counted", "quick", "reproduced"),
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


def shares(value):
    run = history([[0.1, value, value]] * 2)
    return replace(run, diverged=(False, False))


PRINTED = [
    {"name": f"{column}/{method}", "value": value, "where": "Table 1 (accuracy)"}
    for column in ("x", "y")
    for method, value in (("fedavg", 50.0), ("fedrep", 70.0), ("deprl", 80.0))
]


def test_rivals_in_another_order_than_the_papers_are_another_regime():
    runs = {"z/fedavg": shares(0.9), "z/fedrep": shares(0.6), "z/deprl": shares(0.5)}
    said = "rivals are not in the paper's order: on glyphs FedRep is 30 points behind FedAvg, in print 20 ahead"
    assert scope.regime(runs, PRINTED, "deprl") == {"glyphs": said}
    assert scope.regime(runs | {"z/fedavg": shares(0.3)}, PRINTED, "deprl") == {}
    mixed = [row | {"value": 71.0} if row["name"] == "x/fedavg" else row for row in PRINTED]
    assert scope.regime(runs, mixed, "deprl") == {}  # in print they stand both ways


def test_rivals_are_put_in_order_at_the_moment_of_the_comparison():
    """After local training DisPFL is behind D-PSGD, after mixing ahead as in print: only the former is no regime."""

    def judged(algorithm, trained, mixed):
        run, options = shares(trained), (("order", "mix_first"),) if algorithm == "dpsgd" else ()
        settings = replace(run.settings, algorithm=algorithm, algorithm_options=options)
        return replace(
            run, settings=settings, metrics=run.metrics | {"accuracy_mixed": shares(mixed).metrics["accuracy"]}
        )

    runs = {"z/dpsgd": judged("dpsgd", 0.9, 0.5), "z/dispfl": judged("dispfl", 0.6, 0.7)}
    printed = [row | {"name": row["name"].replace("fedavg", "dpsgd").replace("fedrep", "dispfl")} for row in PRINTED]
    said = "rivals are not in the paper's order: on glyphs DisPFL is 30 points behind D-PSGD, in print 20 ahead"
    regimes = [scope.regime(runs, printed, "deprl", moment) for moment in ("", "trained", "mixed")]
    assert regimes == [{"glyphs": said}, {"glyphs": said}, {}]
    runs["z/deprl"] = judged("dpsgd", 0.95, 0.95)
    for moment, outcome in (("trained", "undecided"), ("mixed", "agrees")):
        lead = Comparison("a", 9.0, moment=moment, pair=("z/deprl", "z/dpsgd"), **SURE)
        assert scope.judge(TABLE, "laptop", decide([lead]), runs, printed, {})[0].outcome == outcome
        assert verdicts.compare(runs, "z/deprl", "z/dpsgd", moment=moment).comparisons[0].moment == moment
    assert verdicts.compare(runs, "z/deprl", "z/dpsgd").comparisons[0].moment == "trained"


def test_the_rule_is_applied_to_the_printed_table():
    ahead = Comparison("a", 1.0, unit="points", metric="accuracy", pair=("z/deprl", "z/fedrep"))
    assert scope.self_check([ahead], PRINTED) == []
    behind = [row | {"value": 60.0} if row["name"] == "y/deprl" else row for row in PRINTED]
    (said,) = scope.self_check([ahead], behind)
    assert said == "the printed table itself has DePRL against FedRep at -10.0 (y)"
    assert scope.self_check([replace(ahead, asked=-20.0)], behind) == []


def test_another_regime_takes_the_outcome_of_its_data():
    runs = {"z/fedavg": shares(0.9), "z/fedrep": shares(0.6), "z/deprl": shares(0.95)}
    lead = Comparison("a", 9.0, pair=("z/deprl", "z/fedrep"), **SURE)
    found, _, close = scope.judge(TABLE, "laptop", decide([lead]), runs, PRINTED, {})
    assert (found.outcome, close) == ("undecided", "stand-in")
    assert found.reason.startswith("rivals are not in the paper's order: on glyphs FedRep is 30 points behind FedAvg")
    assert found.comparisons[0].difference == 9.0
    assert scope.judge(TABLE, "quick", decide([lead]), runs, PRINTED, {})[0].outcome == "agrees"
    same = runs | {"z/fedavg": shares(0.3)}
    assert scope.judge(TABLE, "laptop", decide([lead]), same, PRINTED, {})[0].outcome == "agrees"


def test_the_count_of_an_undecided_verdict_leaves_out_what_the_checks_leave_out():
    """One comparison is within its error, and the other belongs to another regime: none of two is as claimed."""
    runs = {"z/fedavg": shares(0.9), "z/fedrep": shares(0.6), "z/deprl": shares(0.95)}
    leads = [Comparison(name, gap, pair=("z/deprl", "z/fedrep"), **SURE) for name, gap in (("a", 9.0), ("b", 0.1))]
    assert decide(leads).reason.endswith("1 of 2 as claimed")
    found = scope.judge(TABLE, "laptop", decide(leads), runs, PRINTED, {})[0]
    assert (found.outcome, found.reason.split("; ")[-1]) == ("undecided", "0 of 2 as claimed")


def test_an_undecided_verdict_keeps_the_reason_that_no_comparison_gives():
    sure, bare = decide([Comparison("a", 9.0, pair=("a", "b"), **SURE)]), Verdict("undecided", "it did not run")
    found = scope.judge(TABLE, "laptop", together(sure, bare), {"a": shares(0.5)}, [], {})[0]
    assert (found.outcome, found.reason) == ("undecided", "it did not run")


def test_a_rule_that_fails_on_the_printed_table_decides_nothing():
    lead = Comparison("a", 9.0, pair=("z/deprl", "z/fedrep"), **SURE)
    behind = [row | {"value": 60.0} if row["name"] == "y/deprl" else row for row in PRINTED]
    found, _, _ = scope.judge(TABLE, "laptop", decide([lead]), {"z/deprl": shares(0.9)}, behind, {})
    assert found.outcome == "undecided"
    assert found.reason.startswith("the printed table itself has DePRL against FedRep at -10.0")


def test_what_still_moves_over_the_papers_rounds_is_undecided():
    """100 rounds at the preset paper, 40 here: 60 rounds at -0.1 points take a lead of 5 points away."""
    runs = {"a": shares(0.5)}
    for lead, expected in ((5.0, "undecided"), (7.0, "agrees")):
        moving = Comparison(
            "a against b", lead, error=0.1, freedom=50.0, n=3, quarters=(-1.0, -1.0), rounds=40, unit="points"
        )
        found, _, _ = scope.judge(TABLE, "laptop", decide([moving]), runs, [], {})
        assert found.outcome == expected
    assert (
        "its curves may move by"
        in scope.judge(TABLE, "laptop", decide([replace(moving, difference=1.0)]), runs, [], {})[0].reason
    )


def test_every_claim_is_quoted_with_its_place():
    for item in presets.items():
        about = presets.item(*item)
        assert 3 <= len(about["quote"].split()) <= 60, item
        assert about["where"], item


def test_distances_are_values_that_json_has():
    for item in presets.items("deprl/*"):
        for each in scope.distance(item, presets.settings(*item, "laptop").values()).values():
            assert all(isinstance(value, int | float | str | bool | tuple | None) for value in each["here"])
