"""The order of a paper's rivals: where it is another here than in print, comparisons of two methods decide nothing."""

import json
from dataclasses import replace

import pytest
from helpers import shares

from fedlab_lite.papers import presets, regime, scope, verdicts
from fedlab_lite.papers.outcome import decide
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.statistics import Comparison

TABLE = Item("deprl", "tab01_accuracy")
SURE = {"error": 0.1, "freedom": 50.0, "n": 3, "unit": "points", "metric": "accuracy", "data": "motion", "rivals": True}
PRINTED = [
    {"name": f"{column}/{method}", "value": value, "where": "Table 1 (accuracy)"}
    for column in ("harbox_ring_0.3", "harbox_ring_0.5")
    for method, value in (("fedavg", 50.0), ("fedrep", 70.0), ("deprl", 80.0))
]
ELSEWHERE = [
    {"name": f"cifar10_ring_0.3/{m}", "value": v, "where": "Table 1 (accuracy)"}
    for m, v in (("fedavg", 90.0), ("fedrep", 10.0))
]
SAID = "rivals are not in the paper's order: on motion FedRep is 30 points behind FedAvg, where Table 1 prints 20 ahead"


@pytest.fixture(autouse=True)
def _no_committed_figures(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLAB_FIGURES", str(tmp_path))


def checked(runs, printed, moment=""):
    return regime.checked(TABLE, regime.of_runs(runs, moment), printed, moment)


def motion(value):
    return shares(value, dataset="motion")


def test_rivals_in_another_order_than_the_papers_are_another_regime():
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6), "z/deprl": motion(0.5)}
    assert checked(runs, PRINTED) == {"motion": (1, SAID)}
    assert checked(runs | {"z/fedavg": motion(0.3)}, PRINTED) == {"motion": (1, "")}
    mixed = [row | {"value": 71.0} if row["name"] == "harbox_ring_0.3/fedavg" else row for row in PRINTED]
    assert checked(runs, mixed) == {"motion": (0, "")}  # in print they stand both ways


def test_the_order_is_that_of_the_columns_of_the_same_data():
    """On CIFAR-10 the print has FedAvg ahead, and on HARBox, for which motion stands, FedRep."""
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6)}
    assert checked(runs, PRINTED + ELSEWHERE) == {"motion": (1, SAID)}
    assert checked(runs, ELSEWHERE) == {"motion": (0, "")}
    others = {name: shares(run.final()[0], dataset="cifar10") for name, run in runs.items()}
    assert checked(others, PRINTED + ELSEWHERE) == {"cifar10": (1, "")}


def test_rivals_are_put_in_order_at_the_moment_of_the_comparison():
    """After local training DisPFL is behind D-PSGD, after mixing ahead as in print: only the former is no regime."""

    def judged(algorithm, trained, mixed):
        run, options = motion(trained), (("order", "mix_first"),) if algorithm == "dpsgd" else ()
        settings = replace(run.settings, algorithm=algorithm, algorithm_options=options)
        return replace(
            run, settings=settings, metrics=run.metrics | {"accuracy_mixed": shares(mixed).metrics["accuracy"]}
        )

    runs = {"z/dpsgd": judged("dpsgd", 0.9, 0.5), "z/dispfl": judged("dispfl", 0.6, 0.7)}
    printed = [row | {"name": row["name"].replace("fedavg", "dpsgd").replace("fedrep", "dispfl")} for row in PRINTED]
    said = [
        SAID.replace("FedRep", "DisPFL").replace("FedAvg", "D-PSGD").replace("motion", f"motion{when}")
        for when in ("", " after local training")
    ]
    regimes = [checked(runs, printed, moment)["motion"] for moment in ("", "trained", "mixed")]
    assert regimes == [(1, said[0]), (1, said[1]), (1, "")]
    runs["z/deprl"] = judged("dpsgd", 0.95, 0.95)
    for moment, outcome in (("trained", "undecided"), ("mixed", "agrees")):
        lead = Comparison("a", 9.0, moment=moment, pair=("z/deprl", "z/dpsgd"), **SURE)
        assert scope.judge(TABLE, "laptop", decide([lead]), runs, printed, {})[0].outcome == outcome
        assert verdicts.compare(runs, "z/deprl", "z/dpsgd", moment=moment).comparisons[0].moment == moment
    assert verdicts.compare(runs, "z/deprl", "z/dpsgd").comparisons[0].moment == "trained"


def test_data_on_which_the_table_of_rivals_has_another_order_are_another_regime(tmp_path, monkeypatch):
    """The item has no rivals of its own on Shakespeare; FeDEQ's Table III, which is committed, has."""
    table, item = Item("fedeq", "tab03_accuracy"), Item("fedeq", "fig08_size_vs_accuracy")
    metrics = {f"shakespeare/{method}": {"mean": mean} for method, mean in (("local", 60.0), ("fedavg", 40.0))}
    (tmp_path / "fedeq").mkdir()
    (tmp_path / "fedeq" / "tab03_accuracy.json").write_text(json.dumps({"preset": "laptop", "metrics": metrics}))
    runs = {"z/fedrep": shares(0.6, dataset="shakespeare"), "z/fedeq": shares(0.5, dataset="shakespeare")}
    (said,) = [said for _, said in regime.order(item, "laptop", runs, []).values()]
    assert "on Shakespeare FedAvg is 20 points behind Local, where Table III prints 19" in said
    assert regime.order(item, "paper", runs, []) == {"shakespeare": (0, "")}
    assert regime.order(table, "laptop", runs, []) == {"shakespeare": (0, "")}  # its own runs count, not its old result
    lead = Comparison("a", 9.0, pair=("z/fedeq", "z/fedrep"), **SURE | {"data": "shakespeare"})
    for each, outcome in ((lead, "undecided"), (replace(lead, rivals=False), "agrees")):
        assert scope.judge(item, "laptop", decide([each]), runs, [], {})[0].outcome == outcome


def test_a_comparison_knows_its_data_and_whether_two_algorithms_are_compared():
    runs = {
        "a": shares(0.6),
        "b": shares(0.5),
        "c": shares(0.4, algorithm="fedrep"),
        "d": shares(0.4, dataset="digits"),
    }
    found = [verdicts.compare(runs, "a", other).comparisons[0] for other in "bcd"]
    assert [(each.data, each.rivals) for each in found] == [("glyphs", False), ("glyphs", True), ("", False)]


def test_the_tables_of_rivals_exist_and_print_accuracies():
    for paper in presets.PAPERS:
        for stem in presets.load(paper).get("rivals", ()):
            assert regime.by_method(presets.published(paper, stem)), (paper, stem)


def test_another_regime_takes_the_outcome_of_its_data():
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6), "z/deprl": motion(0.95)}
    lead = Comparison("a", 9.0, pair=("z/deprl", "z/fedrep"), **SURE)
    found, _, close = scope.judge(TABLE, "laptop", decide([lead]), runs, PRINTED, {})
    assert (found.outcome, close) == ("undecided", "stand-in")
    assert found.reason.startswith("rivals are not in the paper's order: on motion FedRep is 30 points behind FedAvg")
    assert found.comparisons[0].difference == 9.0
    assert scope.judge(TABLE, "quick", decide([lead]), runs, PRINTED, {})[0].outcome == "agrees"
    same = runs | {"z/fedavg": motion(0.3)}
    assert scope.judge(TABLE, "laptop", decide([lead]), same, PRINTED, {})[0].outcome == "agrees"


def test_the_count_of_an_undecided_verdict_leaves_out_what_the_checks_leave_out():
    """One comparison is within its error, and the other belongs to another regime: none of two is as claimed."""
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6), "z/deprl": motion(0.95)}
    leads = [Comparison(name, gap, pair=("z/deprl", "z/fedrep"), **SURE) for name, gap in (("a", 9.0), ("b", 0.1))]
    assert decide(leads).reason.endswith("1 of 2 as claimed")
    found = scope.judge(TABLE, "laptop", decide(leads), runs, PRINTED, {})[0]
    assert (found.outcome, found.reason.split("; ")[-1]) == ("undecided", "0 of 2 as claimed")


def test_the_rule_is_applied_to_the_printed_table():
    ahead = Comparison("a", 1.0, unit="points", metric="accuracy", pair=("z/deprl", "z/fedrep"))
    assert scope.self_check(TABLE, [ahead], PRINTED) == []
    behind = [row | {"value": 60.0} if row["name"] == "harbox_ring_0.5/deprl" else row for row in PRINTED + ELSEWHERE]
    (said,) = scope.self_check(TABLE, [ahead], behind)
    assert said == "the printed table itself has DePRL against FedRep at -10.0 (HARBox, ring, 0.5)"
    assert scope.self_check(TABLE, [replace(ahead, asked=-20.0)], behind) == []
    behind.append({"name": "cifar10_ring_0.3/deprl", "value": 80.0, "where": "Table 1 (accuracy)"})
    assert scope.self_check(TABLE, [replace(ahead, data="cifar10")], behind) == []  # there FedRep is behind
    assert scope.self_check(TABLE, [replace(ahead, data="motion")], behind) == [said]


def test_a_rule_that_fails_on_the_printed_table_decides_nothing():
    lead = Comparison("a", 9.0, pair=("z/deprl", "z/fedrep"), **SURE)
    behind = [row | {"value": 60.0} if row["name"] == "harbox_ring_0.5/deprl" else row for row in PRINTED]
    found, _, _ = scope.judge(TABLE, "laptop", decide([lead]), {"z/deprl": shares(0.9)}, behind, {})
    assert found.outcome == "undecided"
    assert found.reason.startswith("the printed table itself has DePRL against FedRep at -10.0")
