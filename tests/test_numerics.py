"""A run keeps its name: what renames it, what does not, and a record of the source that decides numbers."""

import ast
import json
from dataclasses import dataclass, field, make_dataclass

import numerics
import pytest
from flax import nnx

from fedlab_lite import experiment, figures, training
from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.experiment import run_name
from fedlab_lite.nn.model import MODELS
from fedlab_lite.settings import Settings

FINGERPRINT = "a" * 64


def name(seed=0, fingerprint=FINGERPRINT, **options) -> str:
    return run_name(Settings(**options), seed, fingerprint)


def test_source_that_decides_numbers_is_as_recorded():
    parts = numerics.changed(numerics.current(), json.loads(numerics.RECORD.read_text()))
    assert not parts, (
        f"the source of {', '.join(parts)} has changed. If numbers change, raise its version; if not, or then, record "
        "it: python tests/numerics.py says which committed runs a new version renames, --same records"
    )


def test_everything_that_decides_numbers_is_recorded():
    recorded = json.loads(numerics.RECORD.read_text())
    expected = {"engine", *(f"algorithm {each}" for each in ALGORITHMS), *(f"model {each}" for each in MODELS)}
    assert recorded.keys() == expected, "python tests/numerics.py --same records what is new"


def test_names_are_what_they_were():
    """Names of stored runs, on every version of Python; another name here orphans everybody's runs."""
    settings = {"algorithm": "fedeq", "model": "deq_mlp", "algorithm_options": {"rho": 0.1}, "num_rounds": 3}
    text = '{"algorithm":"fedeq","algorithm_options":{"rho":0.1},"dataset":"glyphs","model":"deq_mlp",'
    text += '"model_options":{},"num_clients":20,"num_rounds":3}'
    assert Settings(**settings).canonical() == text


def test_what_names_a_run():
    base = name()
    assert base == name(seeds=(0, 1, 2))  # a run is one seed; who else is asked for does not count
    different = [
        name(seed=1),
        name(fingerprint="b" * 64),
        name(num_rounds=7),
        name(algorithm_options={"lr": 0.5}),
        name(model_options={"width": 8}),
        name(message_clip=1.0),
    ]
    assert len({base, *different}) == 7


def test_a_spelled_out_default_is_no_other_run():
    spelled = {"partition": "natural", "alpha": 0.5, "algorithm_options": {"epochs": 5, "momentum": None}}
    assert name(**spelled, model_options={"width": 512}) == name()
    # a default of the register counts as one, too
    assert name(model="fl_deq_cnn", model_options={"tol": 0.0, "layers": 4}) == name(model="fl_deq_cnn")


def test_new_things_rename_nothing(monkeypatch):
    before = name(), name(model="deq_mlp", algorithm="fedeq")

    @dataclass(frozen=True)
    class WithOption(FedAvg):
        novelty: float = 0.3

    class Small(nnx.Module):
        pass

    monkeypatch.setitem(ALGORITHMS, "new", FedAvg)
    monkeypatch.setitem(MODELS, "new", (Small, {}))
    monkeypatch.setitem(ALGORITHMS, "fedavg", WithOption)  # an option with a default
    monkeypatch.setitem(figures.LOOKS, "fedavg", ("FedAvg", "#123456", "o", "-"))
    assert before == (name(), name(model="deq_mlp", algorithm="fedeq"))
    longer = make_dataclass("Longer", [("novelty", int, field(default=3))], bases=(Settings,), frozen=True)
    assert run_name(longer(), 0, FINGERPRINT) == before[0]


@pytest.mark.parametrize("part", ["engine", "algorithm", "family"])
def test_a_new_version_renames(monkeypatch, part):
    before, other = name(), name(model="cnn", algorithm="local")
    if part == "engine":
        monkeypatch.setattr(training, "ENGINE", training.ENGINE + 1)
    else:
        owner = FedAvg if part == "algorithm" else MODELS["mlp"][0]
        monkeypatch.setattr(owner, "version", 99, raising=False)
    assert name() != before
    assert (name(model="cnn", algorithm="local") == other) == (part != "engine")


PLAIN = "def f(x):\n    y = x + 1\n    return y\n\nclass A:\n    b: int = 1\n"


def text(source: str) -> str:
    return json.dumps(numerics.normalised(ast.parse(source)))


def test_comments_docstrings_annotations_and_messages_do_not_count():
    rich = (
        '"""Module."""\n# note\ndef f(x: "Float[Array, \'B\']") -> int:\n    """Add one."""\n    y = x + 1  # one\n\n'
        '    return (y)\n\nclass A:\n    """A."""\n    b: float = 1\n'
    )
    assert text(PLAIN) == text(rich)
    assert text(PLAIN) != text(PLAIN.replace("+ 1", "+ 2"))
    failing = "def f(x):\n    if x:\n        raise ValueError('one')\n    return x\n"
    assert text(failing) == text(failing.replace("one", "another message"))


def test_an_algorithm_and_a_model_are_hashed_with_what_they_build_on():
    import inspect

    def built_on(module, package):
        return {found.__name__.rpartition(".")[2] for found in numerics.with_imports(module, package)}

    algorithms = "fedlab_lite.algorithms."
    assert built_on(inspect.getmodule(ALGORITHMS["fedavg_ft"]), algorithms) == {"fedavg_ft", "fedavg", "base"}
    assert built_on(inspect.getmodule(ALGORITHMS["local"]), algorithms) == {"local", "base"}
    assert built_on(inspect.getmodule(MODELS["fl_deq_resnet"][0]), "fedlab_lite.nn.") == {"fl_deq", "deq", "layers"}


def test_versions_of_a_run():
    assert experiment.versions(Settings()) == {"engine": training.ENGINE, "algorithm": FedAvg.version, "family": 1}
