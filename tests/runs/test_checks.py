"""Every parameter of every notebook has a type and a range, and what does not keep to them is refused with both."""

import json
import math
import re
from functools import partial
from types import NoneType

import pytest

from fedlab_lite.algorithms import ALGORITHMS, FedAvg, algorithm_options, make_algorithm
from fedlab_lite.cli import main
from fedlab_lite.nn import MODELS, model_options
from fedlab_lite.papers import Item, notebooks, presets
from fedlab_lite.runs import Settings, check_parameters, rule_of
from fedlab_lite.runs.checks import RANGES, rules
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Range, kinds_of, rules_of, type_name
from fedlab_lite.util.files import notebooks_dir

FIG04 = Item("fedeq", "fig04_mlp_vs_deq_mlp")
FILES = sorted(notebooks_dir().glob("*/*.ipynb"))
PARAMETERS = [(file, name, *known) for file in FILES for name, known in notebooks.parameters(file).items()]
FIRST = {(name, type_name(hint)): file for file, name, hint, _ in reversed(PARAMETERS)}  # one notebook of each kind
each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)  # one test for all parameters of a notebook


def holds(name, hint):
    """Whether a parameter is a list, and what numbers it may have: 'int', 'float' or ''."""
    said = type_name(hint)
    return "list" in said, "float" if "float" in said else "int" if "int" in said else ""


def refused(file, name, hint, value):
    """Both ways: from the command line, and when a reader changes the parameters cell and executes it."""
    cells = [{"__annotations__": {name: said}, name: value} for said in (hint, type_name(hint))]  # also as text
    looks = [partial(check_parameters, cell) for cell in cells]
    for look in (lambda: notebooks.check_parameters(file, {name: value}), *looks):
        with pytest.raises(InputError) as caught:
            look()
        said = str(caught.value)
        assert said.startswith(name)
        assert f"of type {type_name(hint)}" in said
        if isinstance(rule := rule_of(name, hint), Range):
            assert str(rule) in said


@each
def test_each_has_a_range(file):
    """A new name, of no setting, hyper-parameter or model's option, needs a line in `runs.checks.RANGES`."""
    for name, (hint, default) in notebooks.parameters(file).items():
        assert rules(name) or hint in (bool, bool | None) or name == "overrides", name
        assert rule_of(name, hint) or name in ("dataset", "overrides") or bool in kinds_of(hint), name
        notebooks.check_parameters(file, {name: default})
        check_parameters({"__annotations__": {name: hint}, name: default})


def test_a_range_stands_once():
    """`RANGES` has no field's name, and no name that no notebook has."""
    names = {name for _, name, *_ in PARAMETERS}
    owners = (rules_of(Settings), *map(algorithm_options, ALGORITHMS), *map(model_options, MODELS))
    assert not RANGES.keys() & {name for known in owners for name in known}
    assert RANGES.keys() <= names


def test_of_several_rules_the_narrowest():
    """An MLP may go without `features` and DisPFL's `layers` are words; a notebook's are numbers, 1 or more."""
    assert rule_of("features", int) == rule_of("layers", int | None) == Range(1)
    assert rule_of("channels", list[int]) == Range(1)
    assert rule_of("graph", str | None) == ("ring", "star", "random", "complete", "")


ZERO = {  # a step size of 0, wherever it comes from
    "class": lambda: FedAvg(lr=0),
    "name": lambda: make_algorithm("fedavg", lr=0),
    "settings": lambda: Settings(algorithm_options={"lr": 0}),
    "preset": lambda: presets.settings(*FIG04, "quick", lr=0),
    "notebook": lambda: notebooks.check_parameters(notebooks.path(FIG04), {"lr": 0}),
    "overrides": lambda: notebooks.check_parameters(notebooks.path(FIG04), {"overrides": {"lr": 0}}),
    "cell": lambda: check_parameters({"__annotations__": {"lr": float}, "lr": 0}),
}


@pytest.mark.parametrize("how", ZERO)
def test_one_answer_for_a_step_size_of_0(how):
    with pytest.raises(InputError, match=r"^lr( of [\w ]+)? must be of type float( \| None)?, above 0, got 0$"):
        ZERO[how]()


@pytest.mark.parametrize("command", ["run", "compute"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("lr 0", r"lr of [\w ]+ must be of type float( \| None)?, above 0, got 0"),
        ("width -1", r"width of [\w ]+ must be of type int, at least 1, got -1"),
        ("width 2.5", r"width of [\w ]+ must be of type int, at least 1, got 2.5 \(float\)"),
        ("kappa 1.5", r"kappa of [\w ]+ must be of type float( \| None)?, at least 0 and below 1, got 1.5"),
        ("widht 8", r"unknown parameter of [\w /]+ 'widht'; did you mean 'width'\?"),
    ],
)
def test_one_answer_at_the_command_line(capsys, command, values, message):
    """Of the notebook's own parameters as of those that only its runs take."""
    assert main([command, str(FIG04), "-p", *values.split()]) == 2
    assert re.fullmatch(f"error: {message}\n", capsys.readouterr().err)


def test_a_width_of_a_network_in_overrides():
    for width, words in ((-1, "-1"), (2.5, "2.5 (float)"), (True, "True (bool)")):
        with pytest.raises(InputError) as caught:
            notebooks.check_parameters(notebooks.path(FIG04), {"overrides": {"width": width}})
        assert str(caught.value) == f"width of {FIG04.stem} must be of type int, at least 1, got {words}"


def wrong_values(name, hint):
    """Wrong types, negatives, zeros and numbers that are none, where the parameter's type and range exclude them."""
    several, numbers = holds(name, hint)
    wrong = [object(), {}, 3 if several else [3]] + ([True, "many"] if numbers else [3.5])
    if not isinstance(None, hint if isinstance(hint, type) else NoneType) and "None" not in type_name(hint):
        wrong.append(None)
    if numbers:
        span = rule_of(name, hint)
        bad = [math.nan, math.inf, -math.inf] + [-1.0 if numbers == "float" else -1] * (not span.holds(-1))
        bad += [0] * (not span.holds(0)) + [span.high + 1] * (span.high < math.inf) + [2**31] * (numbers == "int")
        wrong += [[value] for value in bad] + [[]] if several else bad
    return wrong


@each
def test_wrong_types_negatives_zeros_and_not_a_numbers(file):
    for name, (hint, _) in notebooks.parameters(file).items():
        if name == "overrides":
            with pytest.raises(InputError, match="overrides must be of type dict"):
                notebooks.check_parameters(file, {name: 3})
            continue
        several, numbers = holds(name, hint)
        if numbers and rule_of(name, hint).holds(0):
            notebooks.check_parameters(file, {name: [0] if several else 0})
        for value in wrong_values(name, hint) if FIRST[name, type_name(hint)] == file else []:
            refused(file, name, hint, value)


def test_none_is_as_the_type_says():
    thm = notebooks.path(Item("fedeq", "thm04_convergence"))
    with pytest.raises(InputError, match="num_clients of thm04_convergence must be of type int, at least 1, got None"):
        notebooks.check_parameters(thm, {"num_clients": None})


def test_a_word_is_one_of_those_there_are():
    fig = notebooks.path(Item("fedf_admm", "fig04_fmnist_2class"))
    with pytest.raises(InputError, match=r"graph of fig04_.* must be one of ring, star, random, complete"):
        notebooks.check_parameters(fig, {"graph": "rign"})
    with pytest.raises(InputError, match=r"preset .* one of quick, laptop, paper, got 'large'"):
        check_parameters({"__annotations__": {"preset": str}, "preset": "large"})


def test_a_readers_cell_is_checked():
    """What a kernel's namespace holds after its first cells: annotations, values, and all else."""
    namespace = {}
    exec("lr: float | None = None\nnotes: 'list' = 3\nother: int = -5\nlr = float('nan')", namespace)
    with pytest.raises(InputError, match=r"lr must be of type float \| None, above 0, got nan"):
        check_parameters(namespace)
    namespace["lr"] = 0.1
    check_parameters(namespace)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_notebook_says_its_cell_and_takes_any_setting(file):
    code = ["".join(cell["source"]) for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    assert "\nfl.setup()\nfl.check_parameters(globals())" in code[1]
    trains = any(presets.settings(file.parent.name, file.stem, preset) for preset in presets.PRESETS)
    assert ("overrides" in notebooks.parameters(file)) == trains
    if trains:
        assert "overrides\n" in code[1].partition("settings = fl.papers.settings(")[0]
        values = {"dataset": "digits", "partition": "dirichlet", "alpha": 0.5, "train_size": 900, "shared_size": 0}
        notebooks.check_parameters(file, values)
        given = notebooks.cell_values(file, values)
        assert given.get("overrides", {}) | given == values | {"overrides": given["overrides"]}
        with pytest.raises(InputError, match=r"train_size of .* at least 1, got 0"):
            notebooks.check_parameters(file, {"train_size": 0})
        with pytest.raises(InputError, match=r"alpha .*above 0, got 0"):
            notebooks.check_parameters(file, {"overrides": {"alpha": 0}})


@pytest.mark.parametrize(
    "arguments",
    [
        "fedeq/thm04 -p num_clients 0",
        "fedf_admm/eq20 -p num_clients 0",
        "fedeq/fig02 -p width 0",
        "fedf_admm/fig15 -p num_draws 0",
        "fedf_admm/fig04 -p seeds []",
        "fedf_admm/fig01 -p num_seeds 0",
        "fedf_admm/sec4 -p num_rounds -1",
        "fedf_admm/fig08 -p num_trials 0",
        "fedeq/fig04 -p lr 1e999",
        "fedeq/fig04 -p seeds [9223372036854775808]",
        "fedeq/fig04 -p width 0",
        "fedeq/fig04 -p dataset mydigits",
        "fedeq/fig04 -p partition dirichle",
        "fedeq/fig04 -p dataset roles -p partition natural -p train_size 200 -p test_size 100",
    ],
)
def test_the_attacks_cases_end_in_a_clear_error(capsys, arguments, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path))
    assert main(["run", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert "Traceback" not in said
    assert any(word in said for word in ("must be of type", "did you mean", "known:", "Networks that"))


def test_compute_checks_as_well(capsys):
    assert main(["compute", "fedeq/fig04", "-p", "lr", "0"]) == 2
    assert "lr of algorithm fedavg must be of type float, above 0, got 0" in capsys.readouterr().err


def test_a_parameter_that_papermill_passes_must_be_one_of_the_notebooks():
    """papermill only warns, and the notebook would run its defaults."""
    cell = {"__annotations__": {"num_rounds": int | None, "lr": float}, "num_rounds": None, "lr": 0.1, "In": [""]}
    check_parameters(cell | {"In": ["", "num_rounds: int | None = None", "# Parameters\nnum_rounds = 3\nlr = 0.2\n"]})
    with pytest.raises(InputError, match="unknown parameter of this notebook 'num_rouds'; did you mean 'num_rounds'"):
        check_parameters(cell | {"In": ["", "# Parameters\nnum_rouds = 3\n"], "num_rouds": 3})
