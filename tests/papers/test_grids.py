"""Presets as grids: written out by hand, and what is wrong in one is named."""

import tomllib

import pytest

from fedlab_lite.papers import grids, presets
from fedlab_lite.util import InputError

FIG04 = ("fedeq", "fig04_mlp_vs_deq_mlp")
SMALL = """
[shared]
ring = { graph = "ring" }
random = { graph = "random", edge_probability = 0.25 }
dpsgd = { algorithm = "dpsgd", epochs = 3 }
small = ["ring", { num_clients = 4 }]

[items.a]
minutes = { quick = 0.5, laptop = 20 }
published."best/one" = [62.4, "Sec. 5"]
runs = ["dpsgd", { deprl = { algorithm = "deprl", lr = 0.1 } }]
quick.base = ["small", { lr = 0.2, deprl.lr = 0.3 }]
quick.columns."{data}_{on}_{alpha}" = [{ data = { d = { dataset = "digits" } }, alpha = [0.1, 1.0] },
    { on = ["ring", "random"], seeds = [0], without = ["dpsgd"] }]
quick.columns."d_ring_1" = { seeds = [0, 1], without = [] }
laptop.hardware = "a laptop"
paper.part_of = "b"

[items.b]
minutes = 1

[tables.a]
where = "Table 1"
columns."{data}/{pi}" = { data = { d = "Digits" }, pi = [0.1, 0.3], label = "{data}, {pi}" }
rows."{who}/{what}" = { who = { x = "X", y = "Y" }, what = { mean = "" }, label = "{who}", values = [[1, 2], [3, ""]] }
"""


def test_a_small_grid_written_out_by_hand():
    expanded = grids.expand(tomllib.loads(SMALL))
    a, table = expanded["items"]["a"], expanded["tables"]["a"]
    runs = {"dpsgd": {"algorithm": "dpsgd", "epochs": 3}, "deprl": {"algorithm": "deprl", "lr": 0.1}}
    ring, random = {"graph": "ring"}, {"graph": "random", "edge_probability": 0.25}
    each = {"dataset": "digits", "seeds": [0], "without": ["dpsgd"]}
    assert a["quick"] == {
        "minutes": 0.5,
        "hardware": "2 CPU cores",
        "base": {"graph": "ring", "num_clients": 4, "lr": 0.2, "deprl": {"lr": 0.3}},
        "runs": runs,
        "columns": {
            "d_ring_0.1": each | ring | {"alpha": 0.1},
            "d_random_0.1": each | random | {"alpha": 0.1},
            "d_ring_1": each | ring | {"alpha": 1.0, "seeds": [0, 1], "without": []},
            "d_random_1": each | random | {"alpha": 1.0},
        },
    }
    assert list(a["quick"]["columns"]) == ["d_ring_0.1", "d_random_0.1", "d_ring_1", "d_random_1"]
    assert a["laptop"] == {"minutes": 20, "hardware": "a laptop", "runs": runs}
    assert (a["paper"]["minutes"], a["paper"]["hardware"], a["paper"]["part_of"]) == (None, "one GPU", "b")
    assert a["published"] == [{"name": "best/one", "value": 62.4, "where": "Sec. 5"}]
    assert table["columns"] == {"d/0.1": "Digits, 0.1", "d/0.3": "Digits, 0.3"}
    assert table["rows"] == {"x/mean": ["X", 1, 2], "y/mean": ["Y", 3, ""]}


def test_what_a_base_says_of_a_run_is_that_runs_alone(monkeypatch):
    table = grids.expand(tomllib.loads(SMALL))["items"]["a"]["quick"]
    monkeypatch.setattr(presets, "preset_table", lambda *names: table)
    runs = presets.settings(*FIG04, "quick")
    names = "d_ring_0.1/deprl d_random_0.1/deprl d_ring_1/dpsgd d_ring_1/deprl d_random_1/deprl"
    assert list(runs) == names.split()
    assert [dict(run.algorithm_options)["lr"] for run in runs.values()] == [0.3, 0.3, 0.2, 0.3, 0.3]
    assert [run.seeds for run in runs.values()] == [(0,), (0,), (0, 1), (0, 1), (0,)]


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ('runs = ["dpsgd"', 'runs = ["dpsg"', "unknown shared settings 'dpsg'; did you mean 'dpsgd'"),
        ('small = ["ring"', 'small = ["later"', "unknown shared settings 'later'"),
        ("{on}_{alpha}", "{on}_{alhpa}", "unknown axis of .* 'alhpa'; did you mean 'alpha'"),
        ('data = { d = "Digits" }', 'date = { d = "Digits" }', "unknown axis of .* 'data'; did you mean 'date'"),
        (", laptop = 20 }", " }", "a at laptop needs `minutes`, its estimated time"),
        (", laptop = 20 }", ", laptop = 20, paper = 3000 }", "a at paper has `minutes`, which its floor says"),
        ("quick.base", "quick.bsae", "unknown key of a at quick 'bsae'; did you mean 'base'"),
        ("laptop.hardware", "laptop.hardwear", "unknown key of a at laptop 'hardwear'; did you mean 'hardware'"),
        ("published.", "publisht.", "unknown key of a 'publisht'; did you mean 'published'"),
        ("runs = [", "rnus = [", "unknown key of a 'rnus'; did you mean 'runs'"),
        ('[62.4, "Sec. 5"]', "62.4", r"published 'best/one' of a must be \[value, where\], got 62.4"),
    ],
)
def test_a_wrong_entry_is_named(was, becomes, message):
    assert was in SMALL
    with pytest.raises(InputError, match=message):
        grids.expand(tomllib.loads(SMALL.replace(was, becomes)))


def test_paper_runs_are_judged_every_few_rounds():
    """Judging every round would be half of the work of FeDEQ's large items; nine rounds are judged one by one."""
    for item in presets.items():
        runs = presets.settings(*item, "paper").values()
        assert all(run.eval_every > 1 or run.num_rounds <= 12 for run in runs), item
