"""Contents of another form: a part is gone, new, or of another kind."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np

STRANGE = (
    None,
    True,
    -1,
    0,
    3.5,
    float("nan"),
    float("inf"),
    10**30,
    "",
    "x",
    "../../x",
    [],
    [1],
    {},
    {"a": 1},
    "1" * 99,
)


def changed(value: Any, rng: random.Random) -> Any:
    """A copy of nested dictionaries and lists with one part removed, added or of another kind."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def walk(each: Any) -> None:
        inside = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, part in list(inside):
            places.append((each, key))
            walk(part)

    walk(value)
    if not places:
        return rng.choice(STRANGE)
    where, key = rng.choice(places)
    kind = rng.choice(("remove", "other", "other", "other", "add"))
    if kind == "remove":
        del where[key]
    elif kind == "other":
        where[key] = rng.choice(STRANGE)
    elif isinstance(where, dict):
        where["invented"] = rng.choice(STRANGE)
    else:
        where.append(rng.choice(STRANGE))
    return value


def other_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    kinds: tuple[Callable, ...] = (
        lambda: array[:0], lambda: array.astype(str), lambda: array[None], lambda: array * np.nan,
        lambda: array.astype(complex), lambda: np.array(3), lambda: array.astype(">f8"), lambda: array[..., None],
    )  # fmt: skip
    return rng.choice(kinds)()
