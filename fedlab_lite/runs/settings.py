"""Settings: everything that decides a run's numbers, as one typed, frozen, hashable record."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedlab_lite.algorithms import ALGORITHMS, algorithm_defaults, algorithm_options, make_algorithm
from fedlab_lite.data import PARTITIONS, which
from fedlab_lite.engine import FUSIONS, GRAPHS, Channel
from fedlab_lite.nn import model_defaults, model_options
from fedlab_lite.util import InputError, choose, fields
from fedlab_lite.util.fields import LARGEST, like, one_of, ranged, rules_of
from fedlab_lite.util.jax_setup import PRECISIONS

MOST_SEEDS = 1000
Options = tuple[tuple, ...]  # sorted pairs (name, value)


def _options(kind: str, name: str, options: Any, known: Mapping[str, fields.Allowed]) -> Options:
    try:
        pairs = dict(options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{kind}_options must be a dictionary, or pairs (name, value), got {options!r}") from error
    return tuple(sorted(fields.checked(f"{kind} {name}", pairs, known).items()))


@dataclass(frozen=True)
class Settings:
    """The settings of a run; equal settings are the same run.

    Raises: `InputError`, on construction, for an unknown name or an invalid value.

    Example:
      >>> settings = Settings(algorithm="fedavg", algorithm_options={"lr": 0.1}, num_rounds=3)
      >>> settings.algorithm_options
      (('lr', 0.1),)
      >>> Settings(**settings.to_dict()) == settings
      True
    """

    dataset: str = "glyphs"  # embedded ('digits', 'textures', ...), published, or <name>.npz in FEDLAB_DATA
    partition: str = one_of("natural", *PARTITIONS)  # of the rows among clients; 'natural': as they were recorded
    num_clients: int = ranged(20, 1)  # N, clients that train
    unseen_clients: int = ranged(0, 0)  # clients, drawn at random, that do not train and join when others are judged
    classes_per_client: int = ranged(2, 1)  # for 'by_label' and 'by_class_cycle'
    alpha: float = ranged(0.5, 0, above=True)  # for 'dirichlet' and 'dirichlet_capped'
    train_size: int | None = ranged(None, 1)  # training rows over all clients; None: all available rows
    test_size: int | None = ranged(None, 1)  # test rows over all clients; None: all available rows
    common_test: bool = False  # every client is judged on all test rows
    validation_size: float = ranged(0.0, 0, 1, below=True)  # share of each client's training rows, held out to tune by
    judge_training: bool = False  # judge every client's model on its training rows as well: '<metric>_training'
    shared_size: int = ranged(0, 0)  # |D_s|, training rows held out as a set that all clients share, without labels
    shared_alpha: float = ranged(0.0, 0)  # their label mix: 0: that of the data; else drawn from Dir(shared_alpha)
    data_seed: int = ranged(0, 0, LARGEST)  # draws data and partition
    data_per_seed: bool = False  # every seed draws its own data and partition, by data_seed + seed
    model: str = "mlp"  # see `fedlab list models`
    model_options: Options = ()  # pairs, or a dictionary, such as {"width": 32}
    algorithm: str = "fedavg"  # see `fedlab list algorithms`
    algorithm_options: Options = ()  # pairs, or a dictionary, such as {"lr": 0.1}
    num_rounds: int = ranged(10, 0)  # T, communication rounds
    cohort_size: int | None = ranged(None, 1)  # |S_t|, clients per round; None: all
    budgets: tuple[int, ...] = ranged((), 1, empty=True)  # k_n, each client's solver iterations; (): `max_iter`
    graph: str = one_of("", *GRAPHS, "")  # links between clients, without a server; '': a server
    num_edges: int | None = ranged(None, 1)  # of a 'random' graph; None: as many as the ring
    edge_probability: float | None = ranged(None, 0, 1, above=True)  # of a 'random' graph, in place of num_edges
    graph_seed: int = ranged(0, 0, LARGEST)  # draws a 'random' graph
    fusion: str = one_of("own", *FUSIONS)  # weights of clients in the average; 'own': the algorithm's
    message_clip: float | None = like(Channel, "clip")  # longest message, in L2 norm; None: no limit
    message_noise: float | None = like(Channel, "noise")  # std of Gaussian noise on messages, in units of message_clip
    precision: str = one_of("float32", *PRECISIONS)  # of matrix products on an accelerator, see `fl.setup`
    eval_every: int = ranged(1, 1)  # rounds between evaluations; the last round is always evaluated
    seeds: tuple[int, ...] = ranged((0,), 0, LARGEST)  # a seed draws initial params, cohorts and the order of rows

    def __new__(cls, *values, **named):
        """Refuse unknown names here with `InputError`; the dataclass's own `__init__` would raise a `TypeError`."""
        for name in named:
            for kind, options in (("algorithm", algorithm_options), ("model", model_options)):
                if name not in rules_of(cls) and name in options(named.get(kind, getattr(cls, kind))):
                    raise InputError(f"{name} is an option of the {kind}; write {kind}_options={{{name!r}: ...}}")
            try:
                choose("setting", name, rules_of(cls))
            except InputError as error:
                raise InputError(f"{error}; `fedlab list settings` explains all") from None
        return super().__new__(cls)

    def __post_init__(self):
        for kind, known in (("model", model_options), ("algorithm", algorithm_options)):
            name, options = getattr(self, kind), f"{kind}_options"
            fields.check_value(kind, name, str)
            object.__setattr__(self, options, _options(kind, name, getattr(self, options), known(name)))
        fields.check_fields(self)
        for name, allowed in rules_of(type(self)).items():
            object.__setattr__(self, name, fields.normal(getattr(self, name), allowed.hint))
        if not self.graph:
            for name in ("edge_probability", "num_edges"):  # without effect, so no part of a run's name
                object.__setattr__(self, name, None)
        which.check(self.dataset)
        make_algorithm(self.algorithm, **dict(self.algorithm_options))
        self.channel()
        self._check_clients()
        self._check_graph()

    def _check_clients(self) -> None:
        if self.unseen_clients >= self.num_clients:
            raise InputError(
                f"unseen_clients is {self.unseen_clients} of {self.num_clients} clients; at least one client must train"
            )
        training = self.num_clients - self.unseen_clients
        if self.cohort_size is not None and self.cohort_size > training:
            raise InputError(f"cohort_size is {self.cohort_size}, but {training} clients train; lower it, or use None")
        if self.budgets and len(self.budgets) != self.num_clients:
            raise InputError(
                f"budgets are {list(self.budgets)}; set one number of solver iterations, 1 or more, for each of the "
                f"{self.num_clients} clients, or leave budgets out"
            )
        if len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"seeds must be different from each other, got {self.seeds!r:.200}")
        if self.data_per_seed and self.data_seed + max(self.seeds) > LARGEST:
            raise InputError(
                f"data_seed {self.data_seed} + seed {max(self.seeds)} is above 2^31 - 1; lower one of them"
            )
        if len(self.seeds) > MOST_SEEDS:
            raise InputError(f"{len(self.seeds):,} seeds; use at most {MOST_SEEDS:,}, each is a run of its own")

    def _check_graph(self) -> None:
        if self.graph and ALGORITHMS[self.algorithm].has_server:
            others = ", ".join(name for name, kind in ALGORITHMS.items() if not kind.has_server)
            words = f"graph is {self.graph!r}, but {self.algorithm} has a server and uses no graph"
            raise InputError(f"{words}; leave it out, or use an algorithm without a server: {others}")

    def channel(self) -> Channel | None:
        """The channel of the settings; None: messages arrive unchanged."""
        if self.message_clip is None and self.message_noise is None:
            return None
        return Channel(self.message_clip, self.message_noise)

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
            name: getattr(self, name)
            for name in rules_of(type(self))
            if name in always or (name != "seeds" and getattr(self, name) != getattr(type(self), name))
        }
        named["dataset"] = self.dataset.removeprefix("embedded:")  # the same rows under their full name
        for kind, defaults in (("model", model_defaults), ("algorithm", algorithm_defaults)):
            options, default = f"{kind}_options", defaults(getattr(self, kind))
            named[options] = {name: value for name, value in getattr(self, options) if value != default[name]}
        return json.dumps(named, sort_keys=True, separators=(",", ":"))

    def of_seed(self, seed: int) -> "Settings":
        """The settings of one seed's run: with its own `data_seed`, where every seed draws its own data.

        >>> settings = Settings(data_per_seed=True, seeds=(0, 1))
        >>> [settings.of_seed(seed).data_seed for seed in settings.seeds]
        [0, 1]
        """
        if not self.data_per_seed:
            return self
        return replace(self, data_per_seed=False, data_seed=self.data_seed + seed)

    def describe(self) -> str:
        """A short description for a progress bar."""
        return f"{self.algorithm} · {self.model} · {self.dataset}"
