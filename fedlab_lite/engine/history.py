"""History: the curves and final numbers of a training, and how it was made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedlab_lite.engine.shown import card, mean_and_band, mean_and_std, numbers_in_words, svg_curve
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Range, check_value
from fedlab_lite.util.jax_setup import joined


@dataclass(frozen=True)
class History:
    """The results of a training: curves, final numbers, and how they were made.

    Accuracies are shares (0-1), means over clients. There are S seeds and E evaluations.

    - `rounds [E]`: the round of each evaluation; 0: before training.
    - `metrics`: name -> `[S, E]`: 'accuracy', 'loss', what the algorithm monitors, and 'accuracy_<judgement>' and
      'loss_<judgement>' of further models. Where models are mixed, by neighbours or a server, the headline is of one
      moment of a round: after mixing, or after local training. The judgement 'trained' or 'mixed' is of the other one.
      'accuracy_pooled' is the accuracy over the test labels of all clients together. 'accuracy_gap' is the best
      client's accuracy minus the worst's; 'accuracy_gap_trained' or 'accuracy_gap_mixed' is that of the other moment.
      With `Settings.judge_training` 'loss_training' is over each client's training rows.
    - `client_curves [S, E, clients]`: every client's accuracy. Another task than classification has its own headline in
      place of accuracy.
    - `message_bytes`: 'up' and 'down', what one sampled client sends and receives per round; without a server, over one
      link of its graph.
    - `num_params`: by part of the model.
    - `diverged [S]`: whether params or loss were ever not finite.
    - `seconds`: wall time, with compilation and without interruptions.
    - `constant`: the headline of the majority baseline (always predicting the commonest class; text: the commonest
      character); nan where the task has none. `own_constant`: the same with the commonest class of each client's own
      training rows, where clients have models of their own.
    - `test_labels`: how many labels are judged: 'all', and for a typical client, 'a client'.
    - `data_fingerprint`: a hash of the rows, see `Federated.fingerprint`. Seeds that draw their own data have one each,
      separated by blanks, and the numbers `constant`, `own_constant` are means over seeds.
    - `device`, `versions` of libraries: all that had a part, where a run was interrupted. How it computed: `precision`
      of matrix products (see `fl.setup`), `executor` of clients, and `clients_at_once`, where they are batched (see
      `engine.for_clients`).
    - `trajectories_at_once`: how many seeds or members of a sweep one program batched. Above 1, numbers may differ in
      their last bits from those of a single one.

    Example:
      >>> metrics = {"accuracy": np.array([[0.25, 0.5], [0.25, 0.75]]), "loss": np.array([[1.5, 0.5], [1.5, 0.5]])}
      >>> about = {"dataset": "digits", "model": "mlp", "algorithm": "FedAvg"}
      >>> counts = {"message_bytes": {"up": 0, "down": 0}, "num_params": {}, "seconds": 1.0}
      >>> counts |= {"device": "", "versions": {}}
      >>> rows = {"data_source": "made up", "data_fingerprint": "", "client_curves": np.zeros((2, 2, 3))}
      >>> History((0, 1), 1, np.arange(2), metrics, diverged=(False, False), about=about, **counts, **rows)
      History(FedAvg · mlp · digits: 1 round, seeds 0, 1, accuracy 0.625)
    """

    seeds: tuple[int, ...]
    num_rounds: int
    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    client_curves: np.ndarray
    diverged: tuple[bool, ...]
    message_bytes: dict[str, int]
    num_params: dict[str, int]
    seconds: float
    data_source: str
    data_fingerprint: str
    device: str
    versions: dict[str, str]
    about: dict[str, str]  # 'dataset', 'model', 'algorithm': names to display
    headline: str = "accuracy"
    constant: float = math.nan
    own_constant: float = math.nan
    test_labels: dict[str, int] = field(default_factory=dict)
    precision: str = "float32"
    executor: str = "map"
    clients_at_once: int | None = None
    trajectories_at_once: int = 1
    settings: Any = None  # the `Settings` of a run; None: `train` made it from objects

    @property
    def made(self) -> dict[str, Any]:
        """What computed: 'device', 'precision' and 'versions'."""
        return {"device": self.device, "precision": self.precision, "versions": self.versions}

    def __repr__(self) -> str:
        return f"History({self._in_words}: {self._length}{self._result})"

    @property
    def _in_words(self) -> str:
        return " · ".join(self.about[part] for part in ("algorithm", "model", "dataset") if part in self.about)

    @property
    def _length(self) -> str:
        rounds = f"{self.num_rounds} round{'s' * (self.num_rounds != 1)}"
        return f"{rounds}, seed{'s' * (len(self.seeds) != 1)} {numbers_in_words(self.seeds)}"

    @property
    def _result(self) -> str:
        found = f", {self.headline} {self.final(self.headline).mean():.4g}" if self.headline in self.metrics else ""
        return f"{found}, {sum(self.diverged)} diverged" if any(self.diverged) else found

    def _repr_html_(self) -> str:
        """The HTML that Jupyter shows: curves of headline and loss, and the final numbers."""
        names = [name for name in dict.fromkeys((self.headline, "loss")) if name in self.metrics]
        colours = ("#0072B2", "#D55E00")
        curves = [
            svg_curve(self.rounds, self.values(name), name, colour)
            for name, colour in zip(names, colours, strict=False)
        ]
        lines = {f"final {name}": mean_and_std(self.final(name)) for name in names}
        lines |= {"trained": self._length, "data": self.data_source, "seconds": f"{self.seconds:.4g}"}
        lines["bytes per client and round"] = ", ".join(f"{way} {n:,}" for way, n in self.message_bytes.items())
        if any(self.diverged):
            lines["diverged"] = f"{sum(self.diverged)} of {len(self.seeds)} seeds"
        return card(self._in_words, lines, curves)

    def plot(self, metric: str | None = None, ax=None, *, scale: float = 1.0, **style: Any):
        """Plot a metric by communication round: its mean over seeds, with a band of plus/minus one standard deviation.

        Args:
          metric: None: the headline, mostly 'accuracy'.
          ax: axes of matplotlib; None: new ones.
          scale: factor on the values (100 for percent).
          style: 'color', 'label', 'marker', 'linestyle', ...; `plots.look` has each algorithm's.

        Returns: the axes. Raises `InputError` if the run lacks the metric.

        Example:
          >>> history.plot("loss", label="FedAvg").legend()  # doctest: +SKIP
        """
        metric = metric or self.headline
        values = scale * self.values(metric)
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        style = {"color": f"C{len(ax.lines) % 10}"} | style
        mean_and_band(ax, self.rounds, values, style)
        ax.set(xlabel="communication round", ylabel=metric)
        ax.xaxis.get_major_locator().set_params(integer=True)
        return ax

    @property
    def client_accuracy(self) -> np.ndarray:
        """Every client's final accuracy, `[S, clients]`."""
        return self.client_curves[:, -1]

    def final(self, name: str = "accuracy", last: int = 10) -> np.ndarray:
        """The mean over the evaluations within the last `last` rounds, `[S]` (FeDEQ, Sec. V-A4: the last 10).

        NaN for a seed whose loss was not finite in one of them.
        """
        check_value("last", last, int, Range(1))
        counted = self.rounds > max(self.num_rounds - last, min(self.num_rounds, 1) - 1)
        return self.values(name)[:, counted].mean(axis=1)

    def values(self, name: str) -> np.ndarray:
        """A metric's curves, `[S, E]`, NaN where the seed's loss is not finite: a broken model's accuracy says nothing.

        Raises `InputError` if the run lacks the metric.
        """
        if name not in self.metrics:
            raise InputError(f"this run has no metric {name!r}; it has {', '.join(sorted(self.metrics))}")
        finite = np.isfinite(self.metrics.get("loss", 0.0))
        return self.metrics[name] if finite.all() else np.where(finite, self.metrics[name], np.nan)

    def has(self, name: str) -> np.ndarray:
        """Whether each seed has a metric, `[S]`: seeds that an earlier version trained may lack it."""
        if name not in self.metrics:
            return np.zeros(len(self.seeds), bool)
        lacks, broken = (np.isnan(self.metrics[each]).all(axis=1) for each in (name, self.headline))
        return broken | ~lacks

    def data_fingerprints(self) -> list[str]:
        """The hash of each seed's rows; the same for all, unless seeds draw their own data."""
        each = self.data_fingerprint.split()
        return each if len(each) > 1 else [self.data_fingerprint] * len(self.seeds)

    def with_seeds(self, seeds: Sequence[int]) -> "History":
        """The history of some of its seeds.

        >>> from fedlab_lite.runs import Settings, run
        >>> both = run(Settings(num_clients=4, num_rounds=1, model_options={"width": 8}, seeds=(0, 1)))
        >>> both.with_seeds([1]).seeds, both.with_seeds([1]).metrics["accuracy"].shape
        ((1,), (1, 2))
        """
        rows = [self.seeds.index(seed) for seed in seeds]
        data = self.data_fingerprints()
        return replace(
            self,
            seeds=tuple(seeds),
            metrics={name: values[rows] for name, values in self.metrics.items()},
            client_curves=self.client_curves[rows],
            diverged=tuple(self.diverged[row] for row in rows),
            data_fingerprint=" ".join(data[row] for row in rows),
        )

    @classmethod
    def stack(cls, parts: Sequence["History"], settings: Any = None) -> "History":
        """Combine the histories of single seeds into one; a metric that a seed lacks is nan there, see `has`.

        (A run that was stored by an earlier version may lack what an algorithm reports now.) Raises `InputError` where
        they do not belong to one training: other rounds were evaluated, or they have no headline in common.
        """
        first = parts[0]
        alike = (first.headline in part.metrics and np.array_equal(part.rounds, first.rounds) for part in parts)
        if not all(alike):
            raise InputError("histories of different trainings cannot be stacked; they may differ only in their seeds")

        def rows(part: History, name: str) -> np.ndarray:
            return part.metrics.get(name, np.full((len(part.seeds), len(first.rounds)), np.nan, np.float32))

        names = dict.fromkeys(name for part in parts for name in part.metrics)
        data = [each for part in parts for each in part.data_fingerprints()]
        if len(set(data)) > 1:  # every seed has its own
            fewest = min(parts, key=lambda part: part.test_labels.get("a client", 0)).test_labels
            means = {
                name: float(np.mean([getattr(part, name) for part in parts])) for name in ("constant", "own_constant")
            }
            source = ", ".join(dict.fromkeys(part.data_source for part in parts))
            about = {"data_source": source, "data_fingerprint": " ".join(data), "test_labels": fewest}
            first = replace(first, **about, **means)
        return replace(
            first,
            seeds=tuple(seed for part in parts for seed in part.seeds),
            metrics={name: np.concatenate([rows(part, name) for part in parts]) for name in names},
            client_curves=np.concatenate([part.client_curves for part in parts]),
            diverged=tuple(diverged for part in parts for diverged in part.diverged),
            seconds=round(sum(part.seconds for part in parts), 3),
            executor=", ".join(sorted({part.executor for part in parts})),
            **joined([part.made for part in parts]),
            trajectories_at_once=max(part.trajectories_at_once for part in parts),
            settings=settings,
        )
