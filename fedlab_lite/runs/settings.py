"""Settings: everything that decides a run's numbers, as one typed, frozen, hashable record."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fedlab_lite.algorithms import algorithm_defaults, algorithm_options, make_algorithm
from fedlab_lite.data import PARTITIONS, which
from fedlab_lite.engine import FUSIONS, GRAPHS, Budget, Channel
from fedlab_lite.nn import MODELS, model_defaults
from fedlab_lite.runs.checks import RANGES, check
from fedlab_lite.util import InputError, choose
from fedlab_lite.util.fields import check_type, hints_of, normal

Options = tuple[tuple, ...]  # sorted pairs (name, value)


def model_option_types(name: str) -> dict[str, type]:
    """The options of a model and their types, taken from their defaults."""
    choose("model", name, MODELS)
    return {option: type(default) for option, default in model_defaults(name).items()}


def _options(kind: str, name: str, options, types: Mapping[str, type]) -> Options:
    try:
        pairs = dict(options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{kind}_options are a dictionary, or pairs (name, value), not {options!r}") from error
    for option, value in pairs.items():
        choose(f"option of {kind} {name}", option, types)
        check_type(f"{option} of {kind} {name}", value, types[option])
    return tuple(sorted((option, normal(value, types[option])) for option, value in pairs.items()))


@dataclass(frozen=True)
class Settings:
    """The settings of a run; equal settings are the same run.

    Raises: `InputError`, on construction, for an unknown name or an invalid value.

    Example:
      >>> settings = Settings(algorithm="fedavg", algorithm_options={"lr": 0.1}, num_rounds=3)
      >>> settings.algorithm_options
      (('lr', 0.1),)
      >>> Settings.from_dict(settings.to_dict()) == settings
      True
    """

    dataset: str = "glyphs"  # embedded ('digits', 'textures', ...), published, or <name>.npz in FEDLAB_DATA
    partition: str = "natural"  # 'iid', 'by_label', 'by_class_cycle', 'dirichlet', 'dirichlet_capped', 'natural'
    num_clients: int = 20
    unseen_clients: int = 0  # clients, drawn at random, that do not train and join when the others are judged
    classes_per_client: int = 2  # for 'by_label' and 'by_class_cycle'
    alpha: float = 0.5  # for 'dirichlet' and 'dirichlet_capped'
    train_size: int | None = None  # training rows over all clients; None: all available rows
    test_size: int | None = None
    common_test: bool = False  # every client is judged on all test rows
    validation_size: float = 0.0  # share of every client's training rows that is held out, to tune by
    judge_training: bool = False  # judge every client's model on its training rows as well: '<metric>_training'
    shared_size: int = 0  # |D_s|, training rows held out as a set that all clients share, without labels
    shared_alpha: float = 0.0  # their label mix: 0: that of the data; else drawn from Dir(shared_alpha)
    data_seed: int = 0  # draws data and partition
    model: str = "mlp"
    model_options: Options = ()  # pairs, or a dictionary
    algorithm: str = "fedavg"
    algorithm_options: Options = ()
    num_rounds: int = 10  # T, communication rounds
    cohort_size: int | None = None  # |S_t|, clients per round; None: all
    budgets: tuple[int, ...] = ()  # k_n, solver iterations that each client can afford; (): the model's max_iter
    graph: str = ""  # links between clients, without a server: 'ring', 'star', 'random', 'complete'; '': a server
    num_edges: int | None = None  # of a 'random' graph; None: as many as the ring
    edge_probability: float | None = None  # of a 'random' graph, in place of num_edges
    graph_seed: int = 0  # draws a 'random' graph
    fusion: str = "own"  # weights of clients in the average: 'own' (the algorithm's), or another rule of `fusion`
    message_clip: float | None = None  # longest message, in L2 norm; None: no limit
    message_noise: float | None = None  # Gaussian noise on messages, its standard deviation in units of message_clip
    message_bits: int | None = None  # bits per number of a message; None: not quantised
    message_loss: float | None = None  # probability that a message does not arrive
    privacy_budget: tuple[float, ...] = ()  # (epsilon, delta) for all of a client's messages; then a run stops
    eval_every: int = 1  # rounds between evaluations; the last round is always evaluated
    seeds: tuple[int, ...] = (0,)  # one trajectory per seed: it draws initial params, cohorts and the order of rows

    def __new__(cls, *values, **named):
        """Refuse unknown names here with `InputError`; the dataclass's own `__init__` would raise a `TypeError`."""
        for name in named:
            choose("setting", name, setting_types())
        return super().__new__(cls)

    def __post_init__(self):
        model_types = model_option_types(self.model) if isinstance(self.model, str) else {}
        algorithm_types = algorithm_options(self.algorithm) if isinstance(self.algorithm, str) else {}
        new = {
            "model_options": _options("model", self.model, self.model_options, model_types),
            "algorithm_options": _options("algorithm", self.algorithm, self.algorithm_options, algorithm_types),
        }
        for field in fields(self):
            value = new.get(field.name, getattr(self, field.name))
            (check if field.name in RANGES else check_type)(field.name, value, field.type)
            object.__setattr__(self, field.name, normal(value, field.type))
        if not self.graph:
            object.__setattr__(self, "edge_probability", None)  # has no effect, so it is not part of a run's name
        make_algorithm(self.algorithm, **dict(self.algorithm_options))
        self._check_ranges()

    def _check_ranges(self) -> None:
        which.check(self.dataset)
        choose("partition", self.partition, PARTITIONS)
        self.channel()
        if self.unseen_clients >= self.num_clients:
            raise InputError(
                f"unseen_clients is {self.unseen_clients} of {self.num_clients} clients; at least one must train, "
                "so choose 0 or more, and fewer than num_clients"
            )
        training = self.num_clients - self.unseen_clients
        if self.cohort_size is not None and self.cohort_size > training:
            raise InputError(
                f"cohort_size {self.cohort_size} is more than the {training} clients that train; None takes all of them"
            )
        if self.budgets and (len(self.budgets) != self.num_clients or min(self.budgets) < 1):
            raise InputError(
                f"budgets are {list(self.budgets)}; give one number of solver iterations, 1 or more, to each of the "
                f"{self.num_clients} clients, or none at all"
            )
        self.privacy()
        choose("fusion", self.fusion, FUSIONS)
        if self.graph:
            choose("graph", self.graph, GRAPHS)
        if len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"seeds must be different from each other, got {self.seeds}")

    def channel(self) -> Channel | None:
        """The channel of the settings; None: messages arrive unchanged."""
        options = {name: getattr(self, f"message_{name}") for name in ("clip", "noise", "bits", "loss")}
        return Channel(**options) if any(value is not None for value in options.values()) else None

    def privacy(self, messages: int = 1) -> Budget | None:
        """The privacy budget of a client that sends `messages` messages per round; None: no limit.

        It is local privacy: the server sees each message. Any two messages that a client could have sent are at most 2
        `message_clip` apart, so the noise multiplier is half of `message_noise`. A client that is not sampled in a
        round spends as much as one that is.
        """
        if not self.privacy_budget:
            return None
        if len(self.privacy_budget) != 2:
            raise InputError(f"privacy_budget is a pair (epsilon, delta), got {self.privacy_budget}")
        if not self.message_noise:
            raise InputError(
                "a privacy_budget is spent on messages with noise, and these have none: any number of them would break "
                "it; set message_noise and message_clip as well"
            )
        return Budget(*self.privacy_budget, noise_multiplier=self.message_noise / 2, messages=messages)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """Settings from a dictionary (JSON, TOML)."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The settings as a dictionary for JSON; options become dictionaries."""
        values = asdict(self)
        return values | {name: dict(values[name]) for name in ("model_options", "algorithm_options")}

    def canonical(self) -> str:
        """The text that names one seed's trajectory: one line of JSON with the non-default settings, without seeds.

        So a spelled-out default, or one that a later version adds, gives the same name. Data, model, algorithm, and
        numbers of clients and rounds are always in it.

        >>> Settings(dataset="embedded:digits").canonical() == Settings(dataset="digits").canonical()
        True
        """
        always = {"dataset", "model", "algorithm", "num_clients", "num_rounds"}
        named = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name in always or (field.name != "seeds" and getattr(self, field.name) != field.default)
        }
        named["dataset"] = self.dataset.removeprefix("embedded:")  # the same rows under their full name
        for kind, defaults in (
            ("model_options", model_defaults(self.model)),
            ("algorithm_options", algorithm_defaults(self.algorithm)),
        ):
            named[kind] = {name: value for name, value in getattr(self, kind) if value != defaults[name]}
        return json.dumps(named, sort_keys=True, separators=(",", ":"))

    def describe(self) -> str:
        """A short description for a progress bar."""
        return f"{self.algorithm} · {self.model} · {self.dataset}"


def setting_types() -> dict[str, Any]:
    """The names and types of the settings themselves, without options of models and algorithms."""
    return hints_of(Settings)
