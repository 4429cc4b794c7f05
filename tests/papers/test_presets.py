"""papers/*.toml: the printed numbers, the presets, and overrides that must fit."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedlab_lite.data import EMBEDDED
from fedlab_lite.papers import floors, presets
from fedlab_lite.util import InputError

EVERY = [(item, preset) for item in presets.items() for preset in presets.PRESETS]
FIG04 = ("fedeq", "fig04_mlp_vs_deq_mlp")


def number(stem, name):
    (row,) = [row for row in presets.published("fedeq", stem) if row["name"] == name]
    return row["value"]


@pytest.mark.parametrize(
    ("stem", "name", "value"),
    [
        ("tab01_datasets", "femnist_200/total_train", 39139),
        ("tab01_datasets", "shakespeare/std", 506.2),
        ("tab02_parameters", "femnist/fedeq/shared_mb", 3.94),
        ("tab02_parameters", "cifar100/baselines/shared_millions", 10.88),
        ("tab03_accuracy", "femnist_100/fedeq", 87.13),
        ("tab03_accuracy", "cifar10_2/fedavg", 38.91),
        ("tab03_accuracy", "cifar100_20/fedeq", 57.49),
        ("tab03_accuracy", "shakespeare_200/knn_per", 48.77),
        ("tab04_unseen_nodes", "cifar10/training/ditto", 82.34),
        ("tab04_unseen_nodes", "cifar100/unseen/fedeq", 60.10),
        ("tab05_vision_models", "cifar100/resnet34/blocks", [3, 5, 8]),
        ("tab05_vision_models", "cifar10/resnet14/size_mb", 11.34),
        ("tab06_sequence_models", "transformer12/size_mb", 2.45),
        ("fig04_mlp_vs_deq_mlp", "size_reduction_percent", 41.0),
    ],
)
def test_numbers_as_printed(stem, name, value):
    assert number(stem, name) == value


@pytest.mark.parametrize(
    ("stem", "cells"),
    [
        ("tab01_datasets", 30),  # 5 rows of 7, less "Various" three times and "-" twice
        ("tab02_parameters", 32),
        ("tab03_accuracy", 56),
        ("tab04_unseen_nodes", 48),
        ("tab05_vision_models", 60),
        ("tab06_sequence_models", 20),
    ],
)
def test_every_cell_is_there_and_says_where(stem, cells):
    rows = presets.published("fedeq", stem)
    assert len(rows) == cells
    assert len({row["name"] for row in rows}) == cells
    assert all(row["where"].startswith("Table ") and set(row) == {"name", "value", "where"} for row in rows)


def test_where_names_row_and_column():
    (row,) = [row for row in presets.published("fedeq", "tab03_accuracy") if row["name"] == "cifar10_5/fedavg_ft"]
    assert row["where"] == "Table III (test accuracy, %), row 'FedAvg + FT', column 'CIFAR-10 (100, 5)'"


NOT_TO_BE_HAD = {"motion", "textures100"}  # HARBox and CIFAR-100 in DePRL


@pytest.mark.parametrize(("item", "preset"), EVERY, ids=[f"{item}@{preset}" for item, preset in EVERY])
def test_presets_are_valid(item, preset):
    about = presets.item(*item)
    assert {"title", "claim", *presets.PRESETS} <= set(about)
    runs = presets.settings(*item, preset)
    minutes = floors.minutes(item, preset)
    assert minutes > 0
    embedded = {run.dataset for run in runs.values()} & set(EMBEDDED)
    if preset == "quick":
        assert embedded == {run.dataset for run in runs.values()}
    else:  # what stands in for data that cannot be had without an account, and nothing at the paper's own size
        assert embedded <= (NOT_TO_BE_HAD if preset == "laptop" else set())
    if preset == "quick":
        assert minutes <= 0.75


def test_the_paper_preset_is_the_papers():
    runs = presets.settings("fedeq", "tab03_accuracy", "paper")
    assert len(runs) == 9 * 7
    assert {run.dataset for run in runs.values() if run.num_rounds != 150} == {"shakespeare"}
    assert {run.num_rounds for run in runs.values()} == {150, 400}
    assert {run.cohort_size / run.num_clients for run in runs.values()} == {0.1}
    fedeq, fedrep = runs["cifar100_5/fedeq"], runs["cifar100_5/fedrep"]
    options = dict(fedeq.algorithm_options)
    assert (fedeq.model, options) == (
        "deq_resnet_m",
        {"lr": 0.01, "batch_size": 20, "epochs": 5, "head_epochs": 3, "rho": 0.01},
    )
    assert (fedrep.model, dict(fedrep.algorithm_options)["lr"]) == ("resnet34", 0.05)
    femnist = runs["femnist_200/fedavg"]
    assert (femnist.model, femnist.num_clients, dict(femnist.algorithm_options)["batch_size"]) == ("resnet20", 200, 10)


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_line_9_as_printed_stands_beside_fedeq(preset):
    """FeDEQ starts at the received theta, as eq. (24) has it; `fedeq_own` differs in that alone."""
    runs = presets.settings("fedeq", "tab03_accuracy", preset)
    pairs = [(run, runs[f"{name}_own"]) for name, run in runs.items() if name.endswith("/fedeq")]
    assert len(pairs) == len({name.partition("/")[0] for name in runs})
    for run, own in pairs:
        assert dict(own.algorithm_options) == dict(run.algorithm_options) | {"start": "own"}
        assert replace(own, algorithm_options=run.algorithm_options) == run


def test_overrides_reach_every_run_that_takes_them():
    runs = presets.settings(*FIG04, "quick", num_rounds=3, lr=0.5, kappa=0.5, seeds=[1, 2], alpha=None)
    assert {run.num_rounds for run in runs.values()} == {3}
    assert {run.seeds for run in runs.values()} == {(1, 2)}
    assert {dict(run.algorithm_options)["lr"] for run in runs.values()} == {0.5}
    assert dict(runs["deq_mlp"].model_options)["kappa"] == 0.5
    assert "kappa" not in dict(runs["mlp"].model_options)
    assert presets.settings(*FIG04, "quick", num_rounds=None) == presets.settings(*FIG04, "quick")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_round": 3}, "unknown parameter of fedeq/fig04_mlp_vs_deq_mlp at quick 'num_round'; did you mean"),
        ({"rho": 0.1}, "unknown parameter .*'rho'"),
        ({"model_options": {}}, "unknown parameter .*'model_options'"),
        ({"num_rounds": "many"}, "num_rounds must be of type int, at least 0, got 'many'"),
        ({"lr": "fast"}, "lr of algorithm fedavg must be of type float, above 0, got 'fast'"),
        ({"lr": 0}, "lr of algorithm fedavg must be of type float, above 0, got 0"),
        ({"width": -1}, "width of model mlp must be of type int, at least 1, got -1"),
        ({"widht": 64}, "unknown parameter of fedeq/fig04_mlp_vs_deq_mlp at quick 'widht'; did you mean 'width'"),
        ({"model": 3}, "model must be of type str"),
        ({"algorithm": "fedavgg"}, "unknown algorithm 'fedavgg'"),
        ({"dataset": "cifar11"}, "unknown data set 'cifar11'; did you mean 'cifar10"),
    ],
)
def test_bad_overrides(overrides, message):
    with pytest.raises(InputError, match=message):
        presets.settings(*FIG04, "quick", **overrides)


def test_unknown_names():
    with pytest.raises(InputError, match="unknown paper 'fedq'; did you mean 'fedeq'"):
        presets.load("fedq")
    with pytest.raises(InputError, match="did you mean 'tab03_accuracy'"):
        presets.settings("fedeq", "tab03_acuracy", "quick")
    with pytest.raises(InputError, match="unknown preset 'quikc'; did you mean 'quick'"):
        presets.settings(*FIG04, "quikc")
    with pytest.raises(InputError, match="did you mean 'tab06_sequence_models'"):
        presets.published("fedeq", "tab06_sequence_model")
    with pytest.raises(InputError, match=r"no notebook matches 'tab3'; similar: .*fedf_admm/tab03_cnn"):
        presets.items("tab3")


@pytest.mark.parametrize("pattern", ["fedeq/tab03_accuracy", "tab03_a", "*tab03_a*", "notebooks/fedeq/tab03_accuracy"])
def test_patterns(pattern):
    assert [str(item) for item in presets.items(pattern)] == ["fedeq/tab03_accuracy"]


def test_a_misplaced_option_in_a_file_is_found(monkeypatch):
    """In a run it must be known; in the base some run must take it; a run that is left out must be one."""
    good = presets.load("fedeq")
    quick = good["items"]["fig04_mlp_vs_deq_mlp"]["quick"]
    for table, message in (
        (quick | {"runs": {"mlp": {"model": "mlp", "kappa": 0.5}}}, "option of run 'mlp'"),
        (quick | {"base": quick["base"] | {"rho": 0.5}}, "parameter of fedeq/fig04_mlp_vs_deq_mlp at quick 'rho'"),
        (quick | {"base": quick["base"] | {"widht": 8}}, "quick 'widht'; did you mean 'width'"),
        (quick | {"base": quick["base"] | {"deq_mpl": {"width": 8}}}, "quick 'deq_mpl'; did you mean 'deq_mlp'"),
        (quick | {"columns": {"a": {"widht": 8}}}, "quick 'widht'; did you mean 'width'"),
        (quick | {"without": ["local_"]}, "unknown run to leave out of .* 'local_'; did you mean 'local'"),
    ):
        monkeypatch.setattr(presets, "preset_table", lambda *names, table=table: table)
        with pytest.raises(InputError, match=message):
            presets.settings(*FIG04, "quick")


def test_a_misspelt_column_of_another_item_is_found(monkeypatch):
    part = presets.item("fedeq", "fig07_loss_curves")["laptop"]
    monkeypatch.setitem(part, "columns", {"fashoin_5": {}})
    with pytest.raises(InputError, match=r"unknown column of fedeq/fig06_.* at laptop 'fashoin_5'; did you mean 'fash"):
        presets.settings("fedeq", "fig07_loss_curves", "laptop")


def test_the_course_is_no_paper():
    """Its chapters can be listed, run and drawn; no table of papers, and no sum over them, has them."""
    chapters = presets.items("*", (presets.COURSE,))
    assert presets.Item("learn", "11_how_fast") in chapters
    assert presets.COURSE not in presets.PAPERS
    assert not set(chapters) & set(presets.items())
    assert all(item.paper != presets.COURSE for item in presets.headlines())
    with pytest.raises(InputError, match="no notebook matches 'learn/11'"):
        presets.items("learn/11")
    assert presets.items("learn/11", presets.ALL) == [presets.Item("learn", "11_how_fast")]
    for item in chapters:
        assert presets.item(*item)["question"]
        assert presets.published(*item) == []
        assert all(floors.minutes(item, preset) <= 1 for preset in presets.PRESETS)


def test_headlines():
    headlines = [str(item) for item in presets.headlines()]
    assert len(headlines) == sum("items" in presets.load(paper) for paper in presets.PAPERS)
    assert "fedeq/fig04_mlp_vs_deq_mlp" in headlines


def test_kept_states_are_asked_for_by_the_item():
    """`final_states` belongs to an item; in a preset it would have no effect."""
    assert {str(item) for item in presets.items() if presets.item(*item).get("final_states")} >= {
        "fedeq/fig06_accuracy_curves",
        "fl_deq/fig04_heterogeneous_devices",
    }
    assert not [key for key in EVERY if "final_states" in presets.preset_table(*key[0], key[1])]


def test_a_part_of_an_item_has_its_runs():
    table = presets.settings("fedf_admm", "tab04_accuracy_gap", "laptop")
    figure = presets.settings("fedf_admm", "fig05_fmnist_1class", "laptop")
    assert list(figure) == [name for name in table if name.startswith("fmnist_1class_cnn/")] + [
        name for name in table if name.startswith("fmnist_2class_cnn/")
    ]
    assert all(run == table[name] for name, run in figure.items())
    dirichlet = presets.settings("fedf_admm", "fig09_fmnist_dirichlet", "laptop")
    assert set(table) - set(dirichlet) >= {"fmnist_dirichlet_cnn/dec_fedprox"}
    assert len(dirichlet) == 8  # Local and two readings among them
    assert presets.preset_table("fedf_admm", "fig05_fmnist_1class", "laptop")["minutes"] == 252


# not at quick: no method learns there with one class per client
@pytest.mark.parametrize(("preset", "network"), [("laptop", "_cnn"), ("paper", "")])
def test_figures_5_13_and_14_share_runs_of_fedf_admm(preset, network):
    table = presets.settings("fedf_admm", "tab04_accuracy_gap", preset)
    run = table[f"fmnist_1class{network}/fedf_admm"]
    assert presets.settings("fedf_admm", "fig05_fmnist_1class", preset)[f"fmnist_1class{network}/fedf_admm"] == run
    assert presets.settings("fedf_admm", "fig13_shared_data", preset)["std"] == run
    assert presets.settings("fedf_admm", "fig14_topologies", preset)["ring_10"] == run


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_fedrecos_figure_3_shares_its_runs_with_tables_1_and_3(preset):
    """`part_of` takes one item, so its runs are written out; the store would not know runs that differ."""
    figure, first, third = (
        presets.settings("fedreco", stem, preset)
        for stem in ("fig03_curves_and_privacy", "tab01_accuracy", "tab03_privacy")
    )
    for name, run in figure.items():
        assert run in [table[name] for table in (first, third) if name in table] or preset == "laptop"
        assert all(table[name] == run for table in (first, third) if name in table)
    noisy = [name for name, run in figure.items() if run.message_noise]
    for name in noisy:  # at laptop on other data than Table 3's, in other batches
        (same,) = [run for other, run in third.items() if other.partition("/")[2] == name.partition("/")[2]][:1]
        batch = {"batch_size": 0} if preset == "laptop" else {}
        assert dict((run := figure[name]).algorithm_options) | batch == dict(same.algorithm_options) | batch
        assert (run.message_clip, run.message_noise) == (same.message_clip, same.message_noise)
    assert len(noisy) == 3


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_deprls_figures_and_table_7_share_runs_with_table_1(preset):
    """`part_of` takes one item and its columns whole, so runs are written out; the store would not know others."""
    first, curves, table, heads, workers = (
        presets.settings("deprl", stem, preset)
        for stem in (
            "tab01_accuracy",
            "fig02_learning_curves",
            "tab07_ps_accuracy",
            "fig08_head_steps",
            "fig09_num_workers",
        )
    )
    assert all(first[name] == run for name, run in curves.items())
    shared = 0
    for name, run in table.items():
        column, _, method = name.partition("/")
        data, _, pi = column.rpartition("_")
        if (same := first.get(f"{data}_ring_{pi}/{method}")) is not None:
            assert run == same
            shared += 1
    readings = sum(name.endswith(("/deprl_code", "_steps")) for name in table)
    columns = {name.partition("/")[0] for name in table}
    assert shared == 5 * len(columns) + readings  # Local, D-PSGD, DisPFL, DePRL twice
    data = "harbox" if preset == "paper" else "motion"
    most = max(run.num_clients for run in workers.values())
    for method, passes in (("local", 3), ("dpsgd", 3), ("dispfl", 3), ("deprl", 2)):
        same = first[f"{data}_ring_0.3/{method}"]
        for run in (heads[f"{data}_{passes}/{method}"], workers[f"{data}_{most}/{method}"]):
            assert replace(run, seeds=same.seeds) == same
            assert set(run.seeds) <= set(same.seeds)


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_columns_of_deprls_table_1_share_the_run_of_workers_alone(preset):
    runs = presets.settings("deprl", "tab01_accuracy", preset)
    alone = {name: run for name, run in runs.items() if name.endswith("/local")}
    tasks = {(run.dataset, run.alpha) for run in alone.values()}
    assert len(set(alone.values())) == len(tasks) < len(alone)
    assert {run.graph for name, run in runs.items() if name not in alone} == {"ring", "random", "complete"}
    assert {run.edge_probability for run in runs.values() if run.graph == "random"} == {0.25}


def test_a_column_can_go_without_a_run():
    runs = presets.settings("deprl", "tab01_accuracy", "laptop")
    assert {"motion_ring_0.3/deprl_code", "motion_random_0.3/deprl"} <= set(runs)
    assert "motion_random_0.3/deprl_code" not in runs


def test_deprls_printed_numbers():
    """Table 7 repeats the ring of Table 1; nothing printed is against the order of graphs or of methods."""
    first, table = (
        {row["name"]: row["value"] for row in presets.published("deprl", stem)}
        for stem in ("tab01_accuracy", "tab07_ps_accuracy")
    )
    assert (len(first), len(table)) == (2 * 108, 2 * 84)  # means, and what follows the sign ±
    assert first["cifar100_complete_0.1/deprl"] == 62.40
    assert (first["harbox_random_0.5/dpsgd"], first["harbox_random_0.5/dpsgd/±"]) == (58.59, 0.7)
    assert table["fashion_mnist_0.3/fedrod"] == 92.29
    for name, value in table.items():
        column, _, method = name.partition("/")
        data, _, pi = column.rpartition("_")
        assert first.get(f"{data}_ring_{pi}/{method}", value) == value
        assert method.endswith("±") or value <= table[f"{column}/deprl"]
    for name, value in first.items():
        if "_ring_" in name and not name.endswith("±"):
            assert value <= first[name.replace("ring", "random")] <= first[name.replace("ring", "complete")]


FILES = sorted(Path(presets.__file__).parent.glob("*.toml"))


def test_the_files_can_be_read_by_people():
    texts = {file.name: file.read_text().splitlines() for file in FILES}
    assert len(texts) == len(presets.ALL)
    assert [f"{name}:{n}" for name, lines in texts.items() for n, line in enumerate(lines, 1) if len(line) > 120] == []
    notebooks = sum(len(tomllib.loads("\n".join(lines))["items"]) for lines in texts.values())
    quoted, inside = 0, False
    for line in (line for lines in texts.values() for line in lines):
        inside |= line.startswith("quote = ")
        quoted += inside
        inside &= not line.startswith("where = ")
    ours = sum(map(len, texts.values())) - quoted  # the papers' sentences are not ours to shorten
    most = 1600 + 20 * (notebooks - 78)
    assert ours <= most, f"papers/*.toml have {ours} lines without quotations, more than {most}: join lines, or grids"
