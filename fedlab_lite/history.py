"""History: the curves and the final numbers of a run, and how it was made."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlab_lite import store
from fedlab_lite.errors import InputError
from fedlab_lite.settings import Settings

_META = ("message_bytes", "num_params", "seconds", "data_source", "data_fingerprint", "device", "versions", "diverged")


@dataclass(frozen=True)
class History:
    """What a run measured. Accuracies are shares (0-1), means over clients; S seeds, E evaluations.

    `rounds [E]` (0: before training); `metrics` name -> `[S, E]`: 'accuracy', 'loss', 'accuracy_<judgement>', and
    what the algorithm monitors; 'accuracy_pooled' is the share of all test rows, whoever holds them; 'accuracy_gap'
    the best client's accuracy less the worst's; `client_curves [S, E, clients]`: every client's accuracy;
    `message_bytes` 'up'/'down': what one sampled client sends and receives in a round (without a server: over one link
    of its graph); `num_params` by part; `diverged [S]`: whether params or loss were ever not finite; `seconds`: wall
    time, compilation included, interruptions not.
    """

    settings: Settings
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

    @property
    def client_accuracy(self) -> np.ndarray:
        """Every client's accuracy at the end, `[S, clients]`."""
        return self.client_curves[:, -1]

    @property
    def num_rounds(self) -> int:
        return self.settings.num_rounds

    def final(self, name: str = "accuracy", last: int = 10) -> np.ndarray:
        """Mean over the evaluations within the last `last` rounds, `[S]` (FeDEQ, Sec. V-A4: the last 10)."""
        if name not in self.metrics:
            raise InputError(f"this run has no metric {name!r}; it has {', '.join(sorted(self.metrics))}")
        counted = self.rounds > max(self.num_rounds - last, min(self.num_rounds, 1) - 1)
        return self.metrics[name][:, counted].mean(axis=1)

    def frame(self):
        """One row a seed, round and metric, as a pandas DataFrame."""
        import pandas as pd

        shape = (len(self.settings.seeds), len(self.rounds))
        tables = [
            pd.DataFrame(
                {
                    "seed": np.repeat(self.settings.seeds, shape[1]),
                    "round": np.tile(self.rounds, shape[0]),
                    "metric": name,
                    "value": values.ravel(),
                }
            )
            for name, values in self.metrics.items()
        ]
        about = {"dataset": self.settings.dataset, "model": self.settings.model}
        return pd.concat(tables, ignore_index=True).assign(**about, algorithm=self.settings.algorithm)

    def save(self, file: Path) -> Path:
        arrays = {f"metric {name}": values for name, values in self.metrics.items()}
        arrays |= {"rounds": self.rounds, "client_curves": self.client_curves}
        meta = {name: getattr(self, name) for name in _META}
        return store.save_run(file, arrays, meta | {"settings": self.settings.to_dict()})

    @classmethod
    def load(cls, file: Path) -> "History | None":
        """The run in `file`, None where there is none. Raises `CorruptFileError`."""
        found = store.load_run(file)
        if found is None:
            return None
        arrays, meta = found
        curves = {name.removeprefix("metric "): array for name, array in arrays.items() if name.startswith("metric ")}
        meta |= {"settings": Settings.from_dict(meta["settings"]), "diverged": tuple(meta["diverged"])}
        return cls(metrics=curves, rounds=arrays["rounds"], client_curves=arrays["client_curves"], **meta)
