"""A run keeps its name: what renames it, what does not, and a record of the source that decides numbers."""

import ast
import json
import shutil
from dataclasses import dataclass, field, make_dataclass
from functools import cache

import numerics
import pytest
from flax import nnx

from fedlab_lite.algorithms import ALGORITHMS, FedAvg
from fedlab_lite.engine import training
from fedlab_lite.nn import MODELS
from fedlab_lite.plots import style
from fedlab_lite.runs import Settings, names, store
from fedlab_lite.runs.names import run_name

FINGERPRINT = "a" * 64
PACKAGE = numerics.ROOT / "fedlab_lite"


def name(seed=0, fingerprint=FINGERPRINT, **options) -> str:
    return run_name(Settings(**options), seed, fingerprint)


def test_source_that_decides_numbers_is_as_recorded():
    parts = numerics.changed(record_now(), json.loads(numerics.RECORD.read_text()))
    assert not parts, (
        f"{parts} changed. If numbers change, raise the version of the part; if not, or then, record it: "
        "python tests/numerics.py says which committed runs a new version renames, --same records"
    )


def test_everything_that_decides_numbers_is_recorded():
    recorded = json.loads(numerics.RECORD.read_text())
    expected = {"engine", "data", *(f"algorithm {each}" for each in ALGORITHMS), *(f"model {each}" for each in MODELS)}
    assert recorded.keys() == expected, "python tests/numerics.py --same records what is new"


def test_names_are_what_they_were():
    """Names of stored runs, on every version of Python; with another name all stored runs would be lost."""
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
    monkeypatch.setitem(style.LOOKS, "fedavg", ("FedAvg", "#123456", "o", "-"))
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


@cache
def record_now() -> dict:
    return numerics.Package(PACKAGE).record()


@pytest.fixture
def copy(tmp_path):
    """A copy of the package to change: `copy(file, old, new)` edits it and returns what the guard then says."""
    folder = tmp_path / "fedlab_lite"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))

    def change(file: str, old: str, new: str, *, move_to: str | None = None) -> dict[str, list[str]]:
        text = (folder / file).read_text()
        assert old in text, f"{file} has no {old!r} to change"
        (folder / file).write_text(text.replace(old, new))
        if move_to:
            (folder / file).rename(folder / move_to)
            for other in folder.rglob("*.py"):
                names = [f"fedlab_lite.{name.removesuffix('.py').replace('/', '.')}" for name in (file, move_to)]
                other.write_text(other.read_text().replace(f"from {names[0]} import", f"from {names[1]} import"))
        return numerics.changed(numerics.Package(folder).record(), record_now())

    return change


def test_doubled_channel_noise_trips_the_guard(copy):
    found = copy("engine/channel.py", "self.noise * self.clip *", "2 * self.noise * self.clip *")
    assert found == {"engine": ["Channel"]}


@pytest.mark.parametrize(
    ("file", "old", "new", "part"),
    [
        ("engine/averaging.py", "asarray(share /", "asarray(2 * share /", "engine"),
        ("algorithms/fedrep.py", "optax.tree.sub(trained, theta)", "trained", "algorithm fedrep"),
        ("nn/mlp.py", "nnx.relu(layer(z))", "layer(z)", "model mlp"),
        ("data/partition.py", "rng.permutation(", "np.sort(", "data"),
    ],
)
def test_what_decides_numbers_trips_the_guard(copy, file, old, new, part):
    assert part in copy(file, old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('fusion: str = one_of("own"', 'fusion: str = one_of("samples"'),
        ("num_edges: int | None = ranged(None", "num_edges: int | None = ranged(7"),
    ],
)
def test_a_default_of_a_setting_trips_the_guard(copy, old, new):
    """A run's name leaves defaults out: another default would be the same name for other numbers."""
    assert copy("runs/settings.py", old, new).keys() == {"engine"}


def test_a_range_of_a_setting_does_not(copy):
    assert not copy("runs/settings.py", "num_rounds: int = ranged(10, 0)", "num_rounds: int = ranged(10, 1)")


@pytest.mark.slow
def test_registers_colours_words_and_moves_do_not_trip_the_guard(copy):
    assert not copy("nn/register.py", '    "cnn": (CNN, {}),', '    "cnn": (CNN, {}),\n    "cnn_again": (CNN, {}),')
    line = '    "local": Local,'
    assert not copy("algorithms/__init__.py", line, f'{line}\n    "alone": Local,')
    assert not copy("plots/style.py", '"#0072B2"', '"#123456"')
    assert not copy("engine/channel.py", "What arrives of one message.", "Another sentence.")
    assert not copy("engine/channel.py", "set message_clip as well", "take another")
    assert not copy("engine/averaging.py", '"""', '"""', move_to="engine/means.py")


def test_a_change_names_the_committed_runs_that_a_new_version_renames():
    everything, own = numerics.committed("engine"), numerics.committed("algorithm dispfl")
    assert 0 < len(own) < len(everything)
    assert {store.load_arrays(numerics.ROOT / file)[1]["about"]["algorithm"] for file in own} == {"dispfl"}
    assert not numerics.committed("data")  # their names have fingerprints


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
    parts = record_now()
    assert parts["algorithm fedavg_ft"].keys() >= {"FedAvgFT", "FedAvg"}
    assert parts["algorithm local"].keys() == {"ALGORITHMS['local']", "Local"}
    assert parts["model fl_deq_resnet"].keys() >= {"FLDEQResNet", "residual_cell", "conv2d"}
    assert parts["engine"].keys() >= {"Channel", "Problem", "local_train", "Algorithm", "SOLVERS['anderson']"}
    assert parts["data"].keys() >= {"Rows", "Federated", "dirichlet_capped"}


def test_versions_of_a_run():
    assert names.versions(Settings()) == {"engine": training.ENGINE, "algorithm": FedAvg.version, "family": 1}


def test_a_version_of_newcomers_renames_runs_with_newcomers_alone():
    settings = {"algorithm": "deprl", "graph": "ring", "num_clients": 6}
    assert "join" not in names.versions(Settings(**settings))
    assert names.versions(Settings(**settings, unseen_clients=2))["join"] == 2
    assert "join" not in names.versions(Settings(num_clients=6, unseen_clients=2))  # FedAvg's are as they were
