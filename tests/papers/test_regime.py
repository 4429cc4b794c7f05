"""The order of a paper's rivals: where it is another here than in print, comparisons of two methods decide nothing."""

import json
from dataclasses import replace

import pytest
from helpers import shares

from fedlab_lite.papers import presets, regime, scope, verdicts
from fedlab_lite.papers.outcome import decide, kindest
from fedlab_lite.papers.presets import Item
from fedlab_lite.papers.regime import Order
from fedlab_lite.papers.statistics import Comparison

TABLE = Item("deprl", "tab01_accuracy")
SURE = {"parts": ((0.1, 50.0),), "n": 3, "unit": "points", "metric": "accuracy", "rivals": True}
SURE |= {"data": "motion", "partition": "Dirichlet 0.3", "clients": 20}
MOTION = "motion", "Dirichlet 0.3", 20
PRINTED = [
    {"name": f"{column}/{method}", "value": value, "where": "Table 1 (accuracy)"}
    for column in ("harbox_ring_0.3", "harbox_ring_0.5")
    for method, value in (("fedavg", 50.0), ("fedrep", 70.0), ("deprl", 80.0))
]
ELSEWHERE = [
    {"name": f"cifar10_ring_0.3/{m}", "value": v, "where": "Table 1 (accuracy)"}
    for m, v in (("fedavg", 90.0), ("fedrep", 10.0))
]
SAID = "rivals are in another order than in print: on motion (Dirichlet 0.3, 20 clients) FedRep is 30 points "
SAID += "behind FedAvg, where Table 1 prints it 20 ahead"


@pytest.fixture(autouse=True)
def _no_committed_figures(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLAB_FIGURES", str(tmp_path))


def plain(found):
    """The number of pairs and the sentence alone."""
    return {key: (each.pairs, each.said) for key, each in found.items()}


def checked(runs, printed, moment=""):
    return plain(regime.checked(TABLE, regime.of_runs(runs, moment), printed, moment))


def motion(value, seeds=2, **settings):
    return shares(value, seeds, **{"dataset": "motion", "partition": "dirichlet", "alpha": 0.3} | settings)


def test_rivals_in_another_order_than_the_papers_are_another_regime():
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6), "z/deprl": motion(0.5)}
    assert checked(runs, PRINTED) == {MOTION: (1, SAID)}
    assert checked(runs | {"z/fedavg": motion(0.3)}, PRINTED) == {MOTION: (1, "")}
    mixed = [row | {"value": 71.0} if row["name"] == "harbox_ring_0.3/fedavg" else row for row in PRINTED]
    assert checked(runs, mixed) == {MOTION: (0, "")}  # in print they stand both ways


def test_the_order_is_that_of_the_columns_of_the_same_data():
    """On CIFAR-10 the print has FedAvg ahead, and on HARBox, for which motion stands, FedRep."""
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6)}
    assert checked(runs, PRINTED + ELSEWHERE) == {MOTION: (1, SAID)}
    assert checked(runs, ELSEWHERE) == {MOTION: (0, "")}
    others = {name: motion(run.final()[0], dataset="cifar10") for name, run in runs.items()}
    assert checked(others, PRINTED + ELSEWHERE) == {("cifar10", "Dirichlet 0.3", 20): (1, "")}


def test_one_data_set_that_is_divided_in_two_ways_is_checked_apart():
    """With two classes each the rivals are reversed, with five they are not: only the former is another regime."""
    kinds = {"two": {"partition": "by_label", "classes_per_client": 2}, "five": {"alpha": 0.3}}
    runs = {f"{name}/fedavg": motion(0.9 if name == "two" else 0.5, **kind) for name, kind in kinds.items()}
    runs |= {f"{name}/{method}": motion(0.6, **kind) for name, kind in kinds.items() for method in ("fedrep", "deprl")}
    said = SAID.replace("Dirichlet 0.3", "2 classes each")
    assert checked(runs, PRINTED) == {("motion", "2 classes each", 20): (1, said), MOTION: (1, "")}
    lead = Comparison("a", 9.0, pair=("five/deprl", "five/fedrep"), **SURE)
    for partition, outcome in (("Dirichlet 0.3", "agrees"), ("2 classes each", "undecided")):
        found = decide([replace(lead, partition=partition)])
        assert scope.judge(TABLE, "laptop", found, runs, PRINTED, {})[0].outcome == outcome


def test_one_data_set_among_other_numbers_of_clients_is_checked_apart(tmp_path):
    """Of 20 clients the rivals are reversed, of 50 not. Numbers without a check of their own are held against all."""
    ends = {20: 0.6, 50: 0.95}
    runs = {f"{n}/fedavg": motion(0.9, num_clients=n) for n in ends}
    runs |= {f"{n}/fedrep": motion(end, num_clients=n) for n, end in ends.items()}
    assert checked(runs, PRINTED) == {MOTION: (1, SAID), (*MOTION[:2], 50): (1, "")}
    lead = Comparison("a", 9.0, pair=("z/deprl", "z/fedrep"), **SURE)
    for clients, outcome in ((20, "undecided"), (50, "agrees"), (0, "undecided")):  # 0: two numbers are compared
        found = decide([replace(lead, clients=clients)])
        assert scope.judge(TABLE, "laptop", found, runs, PRINTED, {})[0].outcome == outcome
    item, known = Item("deprl", "fig09_num_workers"), {"std": 0.5, "n": 3}
    ends = {"motion_ring_0.3/dispfl": 60.0, "motion_ring_0.3/dpsgd": 90.0}
    table = {"preset": "laptop", "metrics": {name: known | {"mean": mean} for name, mean in ends.items()}}
    (tmp_path / "deprl").mkdir()
    (tmp_path / "deprl" / "tab01_accuracy.json").write_text(json.dumps(table))
    here = regime.order(item, "laptop", {"z/dispfl": motion(0.6, num_clients=77)}, [])
    assert "DisPFL is 30 points behind D-PSGD" in here["motion", "Dirichlet 0.3", 77].said


def test_the_print_of_the_same_partition_counts():
    """At pi = 0.5 the print has 40 points between the rivals, at 0.3 only two, which is no order."""
    far = [("0.3", 50.0, 52.0), ("0.5", 50.0, 90.0)]
    printed = [
        {"name": f"harbox_ring_{pi}/{method}", "value": value, "where": "Table 1 (accuracy)"}
        for pi, *both in far
        for method, value in zip(("fedavg", "fedrep"), both, strict=True)
    ]
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6)}
    assert checked(runs, printed) == {MOTION: (0, "")}
    other = {name: motion(run.final()[0], partition="iid") for name, run in runs.items()}  # not in print: all columns
    assert checked(other, printed)["motion", "iid", 20][1].endswith(
        "30 points behind FedAvg, where Table 1 prints it 21 ahead"
    )


@pytest.mark.parametrize(("behind", "seeds", "wrong"), [(0.02, 2, True), (0.02, 1, False), (0.06, 1, True)])
def test_one_seed_must_be_further_behind(behind, seeds, wrong):
    runs = {"z/fedavg": motion(0.6, seeds), "z/fedrep": motion(0.6 - behind, seeds)}
    assert bool(checked(runs, PRINTED)[MOTION][1]) == wrong


def test_a_deficit_within_two_errors_is_no_order():
    run = motion(0.6)
    wide = replace(run, metrics={"accuracy": run.metrics["accuracy"] + [[-0.1], [0.1]]})
    assert checked({"z/fedavg": wide, "z/fedrep": motion(0.55)}, PRINTED) == {MOTION: (1, "")}


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
        SAID.replace("FedRep", "DisPFL").replace("FedAvg", "D-PSGD").replace("clients)", f"clients){when}")
        for when in ("", " after local training")
    ]
    regimes = [checked(runs, printed, moment)[MOTION] for moment in ("", "trained", "mixed")]
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
    known = {"std": 0.5, "n": 3}
    metrics = {f"shakespeare/{method}": known | {"mean": mean} for method, mean in (("local", 60.0), ("fedavg", 40.0))}
    metrics["shakespeare/fedper"] = {"mean": None, "std": None, "n": 3}  # it diverged
    (tmp_path / "fedeq").mkdir()
    (tmp_path / "fedeq" / "tab03_accuracy.json").write_text(json.dumps({"preset": "laptop", "metrics": metrics}))
    roles = {"dataset": "shakespeare", "partition": "natural"}
    runs = {"z/fedrep": shares(0.6, **roles), "z/fedeq": shares(0.5, **roles)}
    (said,) = [each.said for each in regime.order(item, "laptop", runs, []).values()]
    assert "on Shakespeare (by role, 50 clients) FedAvg is 20 points behind Local, where Table III prints it 19" in said
    assert plain(regime.order(item, "paper", runs, [])) == {("shakespeare", "by role", 20): (0, "")}
    assert plain(regime.order(table, "laptop", runs, [])) == {
        ("shakespeare", "by role", 20): (0, "")
    }  # its own runs count, not its old result
    about = SURE | {"data": "shakespeare", "partition": "by role", "clients": 20}
    lead = Comparison("a", 9.0, asked=-20.0, pair=("z/fedeq", "z/fedrep"), **about)
    for each, outcome in ((lead, "undecided"), (replace(lead, rivals=False), "agrees")):
        assert scope.judge(item, "laptop", decide([each]), runs, [], {})[0].outcome == outcome


def test_a_table_without_the_moment_says_nothing_of_methods_that_mix(tmp_path):
    table, known = Item("fedf_admm", "tab04_accuracy_gap"), {"std": 0.5, "n": 3}
    metrics = {"digits_2class/cmfd/accuracy": known | {"mean": 60.0}, "digits_2class/local": known | {"mean": 20.0}}
    (tmp_path / "fedf_admm").mkdir()
    result = tmp_path / "fedf_admm" / "tab04_accuracy_gap.json"

    def methods(moment):
        result.write_text(json.dumps({"preset": "quick", "metrics": metrics}))
        return {name for found in regime.of_result(table, "quick", moment).values() for name in found}

    assert methods("mixed") == {"cmfd", "local"}
    assert methods("trained") == {"local"}  # it does not mix
    metrics["digits_2class/cmfd/trained"] = known | {"mean": 50.0}
    assert methods("trained") == {"cmfd", "local"}


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


def test_where_one_division_of_a_data_set_is_wrong_the_others_are_named(monkeypatch):
    orders = {("motion", "iid"): Order(1, 0, "wrong"), ("motion", "Dirichlet 0.3"): Order(2, 2)}
    orders |= {("digits", "iid"): Order(1), ("digits", "Dirichlet 0.3"): Order(3, 2), ("glyphs", "iid"): Order(0)}
    found = {regime.Federation(*key, 10): each for key, each in orders.items()}
    monkeypatch.setattr(regime, "order", lambda *_: found)
    assert regime.in_words(TABLE, "laptop", {}, [], []) == [
        "wrong",
        "motion (Dirichlet 0.3, 10 clients): 2 of 2 pairs of rivals in the paper's order",
        "digits: 2 of 4 pairs of rivals in the paper's order, none is clearly reversed",
        "glyphs: no two rivals to check",
    ]


def test_another_regime_takes_the_outcome_of_its_data():
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6), "z/deprl": motion(0.95)}
    lead = Comparison("a", 9.0, pair=("z/deprl", "z/fedrep"), **SURE)
    found, _, close = scope.judge(TABLE, "laptop", decide([lead]), runs, PRINTED, {})
    assert (found.outcome, close) == ("undecided", "stand-in")
    assert found.reason == (
        "a: +9.0 ± 0.1 points (3 seeds), but rivals are in another order (in print FedRep above FedAvg); 0 of 1 decided"
    )
    assert found.comparisons[0].difference == 9.0
    assert scope.judge(TABLE, "quick", decide([lead]), runs, PRINTED, {})[0].outcome == "agrees"
    same = runs | {"z/fedavg": motion(0.3)}
    assert scope.judge(TABLE, "laptop", decide([lead]), same, PRINTED, {})[0].outcome == "agrees"


def test_the_count_of_an_undecided_verdict_leaves_out_what_the_checks_leave_out():
    """One comparison is within its error, and the other belongs to another regime: none of two is as claimed."""
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6), "z/deprl": motion(0.95)}
    leads = [Comparison(name, gap, pair=("z/deprl", "z/fedrep"), **SURE) for name, gap in (("a", 9.0), ("b", 0.1))]
    assert decide(leads).reason.endswith("1 of 2 decided as claimed")
    found = scope.judge(TABLE, "laptop", decide(leads), runs, PRINTED, {})[0]
    assert (found.outcome, found.reason.split("; ")[-1]) == ("undecided", "0 of 2 decided")


def test_what_is_also_asked_in_several_readings_is_checked_too():
    runs = {"z/fedavg": motion(0.9), "z/fedrep": motion(0.6), "z/deprl": motion(0.95)}
    lead = decide([Comparison("a", 9.0, pair=("z/deprl", "z/fedrep"), **SURE)])
    also = {"plain": lead, "kindest": kindest({"words": lead, "code": lead})}
    _, also, _ = scope.judge(TABLE, "laptop", lead, runs, PRINTED, also)
    assert {name: each.outcome for name, each in also.items()} == {"plain": "undecided", "kindest": "undecided"}


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
    assert scope.self_check(TABLE, [replace(ahead, data="motion", partition="Dirichlet 0.3")], behind) == []


def test_the_rule_is_applied_to_display_names_and_variants_by_their_algorithm():
    about = {"unit": "points", "metric": "accuracy", "methods": ("deprl", "fedrep")}
    behind = [row | {"value": 60.0} if row["name"] == "harbox_ring_0.5/deprl" else row for row in PRINTED]
    network = Comparison("a", 1.0, pair=("DePRL", "ResNet-20"), **about)  # a network of FedRep's is no row
    assert scope.self_check(TABLE, [network], behind) == []
    for pair in (("DePRL", "FedRep"), ("z/deprl_same", "FedRep (motion)")):
        (said,) = scope.self_check(TABLE, [Comparison("a", 1.0, pair=pair, **about)], behind)
        assert said.endswith("at -10.0 (HARBox, ring, 0.5)")
    unknown = Comparison("a", 1.0, pair=("DePRL", "FedRep"), **about | {"methods": ()})
    assert scope.self_check(TABLE, [unknown], behind) == []


@pytest.mark.parametrize(
    ("metric", "about", "fails"),
    [
        ("accuracy", {"above": True}, True),
        ("accuracy_gap", {"above": False}, False),
        ("accuracy_gap", {"above": True}, True),
        ("accuracy", {"above": False, "asked": 5.0, "signed": False}, False),
        ("accuracy", {"above": False, "asked": 1.0, "signed": False}, True),
    ],
)
def test_gaps_and_distances_are_looked_up_in_the_table_of_rivals(metric, about, fails):
    """Figure 9 prints no numbers; Table IV has 84.8 and 86.4 % for FedF-ADMM and DecFedAvg, gaps of 3.0 and 8.3."""
    about |= {"pair": ("FedF-ADMM", "DecFedAvg"), "methods": ("fedf_admm", "dec_fedavg"), "metric": metric}
    about |= {"data": "fashion_mnist", "partition": "Dirichlet 0.1"}
    found = scope.self_check(Item("fedf_admm", "fig09_fmnist_dirichlet"), [Comparison("a", 1.0, **about)], [])
    gap = "-1.6" if metric == "accuracy" else "-5.3"
    where = "(Fashion-MNIST, Dirichlet)"
    assert found == [f"the printed table itself has FedF-ADMM against DecFedAvg at {gap} {where}"] * fails
    elsewhere = Comparison("a", 1.0, **about | {"data": "digits"})  # Table IV has no column of these data
    assert scope.self_check(Item("fedf_admm", "fig09_fmnist_dirichlet"), [elsewhere], []) == []


def test_fedavg_and_local_must_be_on_the_papers_sides():
    """Half a point is within the error of any other pair; of several reversed pairs the widest is told."""
    printed = [row | {"name": row["name"].replace("fedavg", "local").replace("fedrep", "fedavg")} for row in PRINTED]
    runs = {"z/local": motion(0.605), "z/fedavg": motion(0.6)}

    def found(runs, rows):
        return regime.checked(TABLE, regime.of_runs(runs), rows)[MOTION]

    sides = found(runs, printed)
    assert (sides.pairs, sides.right) == (1, 0)
    assert "FedAvg is 0.5 points behind Local, where Table 1 prints it 20 ahead" in sides.said
    assert found({"z/fedavg": motion(0.605), "z/fedrep": motion(0.6)}, PRINTED) == Order(1, 0)
    more = [{"name": f"harbox_ring_0.{pi}/ditto", "value": 10.0, "where": "Table 1 (accuracy)"} for pi in (3, 5)]
    wide = {"z/fedavg": motion(0.7), "z/fedrep": motion(0.6), "z/ditto": motion(0.9)}
    assert "(in print FedRep above Ditto)" in found(wide, PRINTED + more).short


def test_a_rule_that_fails_on_the_printed_table_decides_nothing():
    lead = Comparison("a", 9.0, pair=("z/deprl", "z/fedrep"), **SURE)
    behind = [row | {"value": 60.0} if row["name"] == "harbox_ring_0.3/deprl" else row for row in PRINTED]
    found, _, _ = scope.judge(TABLE, "laptop", decide([lead]), {"z/deprl": shares(0.9)}, behind, {})
    assert found.outcome == "undecided"
    assert found.reason.startswith("the printed table itself has DePRL against FedRep at -10.0")
