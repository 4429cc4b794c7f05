"""Bad input: values that cannot be, through Python, the command line and the parameters of every notebook."""

from collections.abc import Iterator
from pathlib import Path

from attacks.cases import Outcome, at_the_command_line, ends
from fedlab_lite.papers import notebooks, presets
from fedlab_lite.runs import Settings, runner
from fedlab_lite.util.fields import rules_of

NUMBER = (-1, "many", [], float("nan"), True)
SETTINGS = {  # field: values that cannot be; the error says the field's name
    "dataset": ("", "glyfs", 3, "../digits"),
    "partition": ("", "by_labels", None),
    "model": ("mlpp", None, 7),
    "algorithm": ("fedavgg", None, []),
    **dict.fromkeys(("num_clients", "classes_per_client", "train_size", "cohort_size", "eval_every"), (*NUMBER, 0)),
    **dict.fromkeys(("num_rounds", "data_seed", "shared_size", "graph_seed", "validation_size"), NUMBER),
    "unseen_clients": (-1, 20, "x"),
    "alpha": (0.0, -1, float("nan"), "x"),
    "budgets": ((1,), (0,) * 20, "x"),
    "graph": ("rings", 3),
    "fusion": ("ownn", None),
    "message_clip": (0.0, -1, float("nan"), "x"),
    "seeds": ((), (-1,), (0, 0), (2**63,), "x", None, (0.5,)),
    "algorithm_options": (None, 5, "ab", {"lrr": 1}, {"lr": "x"}, {"lr": -1.0}, {"batch_size": 0}),
    "model_options": (None, 5, "ab", {"widht": 1}, {"width": "x"}, {"width": 0}, {"width": -1}),
}
WORDS = {"dataset": "dataset|data set", "validation_size": "validation_size|share"}  # where it is not the name
COMMANDS = {  # a command line, and what its error says
    "run": "usage",
    "nonsense": "unknown command",
    "run fedeq/tab99": "similar",
    "run zzz": "no notebook",
    "run tab03 --jobs 0": "--jobs",
    "run tab03 --jobs x": "--jobs",
    "run tab03 --preset big": "preset",
    "run fedeq/fig04 --preset quick -p preset paper": "differ",
    "run fedeq/fig04 --dask nowhere.invalid:1": "no Dask scheduler",
    "compute fedeq/fig04 -p dataset roles": "natural",
    "compute fedeq/fig04 -p width 0": "width",
    "compute fedeq/fig04 -p seeds 9223372036854775808,": "seeds",
    "compute fedeq/fig04 -p num_clients 0": "num_clients",
    "compute fedeq/fig04 -p paper x": "parameter",
    "compute fedeq/fig04 -p preset big": "preset",
    "compute fedeq/fig04 --clients-at-once 0": "--clients-at-once",
    "compute fedeq/fig04 --trajectories-at-once -1": "--trajectories-at-once",
    "data fetch": "name of the data set",
    "data fetch cifar": "cifar",
    "data status cifar": "cifar",
    "report --nonsense": "usage",
}


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    """Settings and commands that cannot be, and two wrong values for each parameter of a notebook."""
    assert SETTINGS.keys() <= rules_of(Settings).keys()
    for name, values in SETTINGS.items():
        for value in values:

            def make(name=name, value=value) -> None:
                runner.build_problem(Settings(**{name: value}))

            options = next(iter(value), "") if isinstance(value, dict) else ""
            yield ends(f"Settings({name}={value!r})", make, WORDS.get(name, options or name))
    for line, words in COMMANDS.items():
        yield ends(f"fedlab {line}", at_the_command_line(line), words)
    for item in presets.items("*" if share == 1 else "fedeq/fig04", presets.ALL):
        if item.notebook.exists():
            for name, (hint, _) in notebooks.parameters(item.notebook).items():
                for value in ("3" if hint is dict else "{}", *(["x=1"] if hint is not str else [])):
                    line = f"run {item} -p {name} {value}"
                    yield ends(f"fedlab {line}", at_the_command_line(line), WORDS.get(name, name))
