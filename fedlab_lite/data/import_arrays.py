"""Import of arrays: a .npz of another project, such as MedMNIST, Keras or torchvision, as the arrays of a data set."""

from pathlib import Path

import numpy as np

from fedlab_lite.data import npz, ranges
from fedlab_lite.data.formats import Arrays
from fedlab_lite.util import InputError

ROWS = ("x", "images", "data", "image", "features")  # `x_train` (Keras), `train_images` (MedMNIST), `train_data`
LABELS = ("y", "labels", "targets", "label", "target")
NAMES_OF_PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "val"
)


def read_arrays(source: Path) -> tuple[Arrays, list[str]]:
    """The columns of a .npz (`x`, `y`, `owner`, `test` and what describes them), and what was done to make them.

    Rows named `val` join those for training, or are those for testing where there are no others. One pair without a
    part in its name, such as `data` and `targets`, is divided later. Raises `InputError` for other names.
    """
    arrays, wrong = npz.arrays_in(source)
    kept = {key: arrays.pop(key) for key in (npz.FEATURES, npz.RANGE, npz.WORDS) if key in arrays}
    found: dict[str, Arrays] = {}
    for key, array in arrays.items():
        words = key.lower().split("_")
        part = next((NAMES_OF_PARTS[word] for word in words if word in NAMES_OF_PARTS), "")
        kind = "_".join(word for word in words if word not in NAMES_OF_PARTS)
        kind = "x" if kind in ROWS else "y" if kind in LABELS else kind
        if kind not in ("x", "y", "owner") or kind in found.get(part, {}):
            wrong.append(f"it has {key!r}, which is not part of a data set, or is there under two names")
        found.setdefault(part, {})[kind] = array
    for part, pair in found.items():
        wrong += [f"it has no {kind} for its {part or 'rows'}" for kind in ("x", "y") if kind not in pair]
    if wrong:
        raise InputError(f"{source} cannot be imported:" + "".join(f"\n  - {each}" for each in wrong))
    if set(found) not in ({""}, {"train"}, {"train", "test"}, {"train", "val"}, {"train", "val", "test"}):
        raise InputError(
            f"{source} has the parts {', '.join(map(repr, found))}; it needs rows for training and testing"
        )
    said = []
    for part, pair in found.items():
        x, y = pair["x"], np.asarray(pair["y"])
        if y.ndim == 2 and y.shape[1] == 1:
            pair["y"] = y = y[:, 0]
        if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
            raise InputError(f"{source}: x is {x.shape} and y {y.shape}; both need one row per sample, `[n, ...]`")
        if ranges.channels_first(x.shape):
            pair["x"] = np.moveaxis(x, 1, -1)
            said.append(f"{part} rows {x.shape[1:]} have the channels first: they were moved last".strip())
    if len({(pair["x"].dtype, pair["x"].shape[1:]) for pair in found.values()}) > 1:
        raise InputError(f"{source}: the rows of {', '.join(found)} differ in type or shape; convert one to the other")
    if "val" in found:
        role = "join those for training" if "test" in found else "are for testing"
        said.append(f"{len(found['val']['x']):,} rows for validation {role}")
        if "test" not in found:
            found["test"] = found.pop("val")
    kinds = set.intersection(*(set(pair) for pair in found.values()))
    columns = {kind: np.concatenate([pair[kind] for pair in found.values()]) for kind in sorted(kinds)}
    if "test" in found:
        columns["test"] = np.concatenate([np.full(len(pair["x"]), part == "test") for part, pair in found.items()])
    return columns | kept, said
