"""`SavedModel`: trained models that `saved.load` has read, which predict the labels of new rows."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from fedlab_lite.data import ranges
from fedlab_lite.nn import Model
from fedlab_lite.util import InputError
from fedlab_lite.util.errors import did_you_mean
from fedlab_lite.util.fields import check_value

CHUNK = 1000  # rows per forward pass
UNSCALED = 50  # standard deviations, or times white: rows that hold more were not scaled


@dataclass(frozen=True, eq=False)
class SavedModel:
    """Models that `load` has read: `predict` and `probabilities` of rows like those that they were trained on."""

    model: Model
    params: dict[str, dict]  # 'own' (leaves [clients, ...]), 'shared' and 'global'
    about: dict[str, Any]  # the content of `model.json`

    def __repr__(self) -> str:
        about = f"rows of shape {self.model.input_shape}, {self.model.num_classes} classes, clients {self._known()}"
        return f"SavedModel({self.about['algorithm']['name']}, {self.model.name}: {about})"

    @property
    def client_names(self) -> tuple[str, ...]:
        return tuple(self.about["clients"]["names"])

    def predict(self, x: Any, client: int | str | None = None) -> np.ndarray:
        """The label of each row of `x [n, ...]`: its word where the data had words, else its number.

        Args and errors: as `probabilities`.
        """
        labels, words = self.probabilities(x, client).argmax(-1), self.about["labels"]["words"]
        return np.array(words)[labels] if words else labels

    def scaled(self, x: Any) -> np.ndarray:
        """The rows `x [n, ...]`, in the numbers of the data's file, as `predict` takes them; see `like_training`."""
        x, inputs = np.asarray(x), self.about["inputs"]
        if "range" not in inputs:
            return x
        return ranges.like_training(x, self.model.input_shape, inputs["range"], inputs["dtype"])

    def probabilities(self, x: Any, client: int | str | None = None) -> np.ndarray:
        """The probability of each class for each row of `x [n, ...]`: `[n, classes]`, for text `[n, length, classes]`.

        Args:
          x: rows as in training. Pixels are uint8 where they were uint8 there; the network scales them. Where the file
            had an `x_range`, new rows go through `scaled` first.
          client: whose model answers: a client's number, or its name as text. None: the model that all share.

        Raises: `InputError` for rows of another shape or type, for an unknown client, and for no client where each has
          a model of its own.
        """
        params, x = self._params(client), self._rows(x)
        starts = range(0, len(x), CHUNK)
        return np.concatenate([np.asarray(_answer(self.model, params, x[i : i + CHUNK])) for i in starts])

    def _params(self, client: int | str | None) -> dict:
        """The parameters of a client's model, or of the shared one."""
        number, names = self.about["clients"]["number"], self.client_names
        if client is None:
            if "own" in self.params and "global" not in self.params:
                who = f"each client of {self.about['algorithm']['name']} has a model of its own"
                raise InputError(f"{who}; say whose with client=..., one of {self._known()}")
            return self.params["global" if "own" in self.params else "shared"]
        check_value("client", client, int | np.integer | str)
        if isinstance(client, str):
            if client not in names:
                near = did_you_mean(client, names) or f" (known: {self._known()})"
                raise InputError(f"unknown client {client!r}{near}")
            client = names.index(client)
        if not 0 <= client < number:
            raise InputError(f"client is {client}, but the clients are 0 to {number - 1}")
        own = jax.tree.map(lambda leaf: leaf[client], self.params.get("own", {}))
        return self.params.get("shared", {}) | own

    def _known(self) -> str:
        """The clients as text: their names, or their numbers."""
        number, names = self.about["clients"]["number"], self.client_names
        return ", ".join([*names[:5], "..."][: len(names)]) if names else f"0 to {number - 1}"

    def _rows(self, x: Any) -> np.ndarray:
        """The rows in the type of the training rows."""
        x, shape, dtype = np.asarray(x), self.model.input_shape, np.dtype(self.about["inputs"]["dtype"])
        if x.ndim == 0 or x.shape[1:] != shape or len(x) == 0:
            one = "; a single row is x[None]" if x.shape == shape else ""
            raise InputError(f"x has shape {x.shape}, but a row has shape {shape}: pass one or more, `[n, ...]`{one}")
        kinds = {"f": "fi"}.get(dtype.kind, dtype.kind)
        if x.dtype.kind not in kinds or (dtype in ranges.WHITE and x.dtype != dtype):
            how = f"{dtype}, {self.about['inputs']['scaling']}"
            raise InputError(f"x is {x.dtype}, but the rows in training were {how}; convert x as those were")
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            row = np.argwhere(~np.isfinite(x))[0, 0]
            raise InputError(f"row {row} of x holds NaN or infinity; remove or repair it")
        if "range" in self.about["inputs"] and x.dtype.kind == "f" and np.abs(x).max() > UNSCALED:
            raise InputError(f"x holds {np.abs(x).max():g}, but rows were scaled in training; pass saved.scaled(x)")
        return x.astype(dtype)


@partial(jax.jit, static_argnums=0)
def _answer(model: Model, params: dict, x: jax.Array) -> jax.Array:
    return jax.nn.softmax(model.apply(params, x))
