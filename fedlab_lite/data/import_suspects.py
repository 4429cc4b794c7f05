"""Columns of a table that should perhaps not be features: row numbers, what tells the label, whose the row is."""

import re
from collections.abc import Sequence

import numpy as np

_NUMBERS = re.compile(r".*(id|index|idx|key|nr|no|num|number|row)", re.IGNORECASE)
_WHOSE = re.compile(
    r"(owner|user|client|subject|patient|person|participant|writer|author|site|hospital|device)s?"
    r"([_ -]?(id|nr|no|name))?",
    re.IGNORECASE,
)
ENOUGH = 8  # rows; with fewer, chance makes such columns


def suspects(x: np.ndarray, names: Sequence[str], labels: np.ndarray, owner: str | None) -> list[str]:
    """Warnings about features `x [n, columns]`, each with what to do.

    Example:
      >>> x, y = np.stack([np.arange(9), np.arange(9) % 2], 1), np.arange(9) % 2
      >>> [words.partition(";")[0] for words in suspects(x, ["Id", "leak"], y, None)]
      ["warning: column 'Id' numbers the rows", "warning: column 'leak' alone tells the label"]
    """
    if len(x) < ENOUGH:
        return []
    y = np.unique(labels, return_inverse=True)[1]
    found = []
    for name, values in zip(names, x.T, strict=True):
        distinct, group = np.unique(values, return_inverse=True)
        numbered = len(distinct) == len(values) and bool((values == np.rint(values)).all())
        steps = np.diff(values)
        if owner is None and _WHOSE.fullmatch(name) and len(distinct) < len(values):
            found.append(f"warning: column {name!r} seems to say whose a row is; if so, import with --owner {name}")
        elif numbered and (_NUMBERS.fullmatch(name) or np.ptp(steps) == 0):
            found.append(f"warning: column {name!r} numbers the rows; leave it out: --drop {name}")
        elif len(distinct) > 1 and _tells(group, y):
            words = f"warning: column {name!r} alone tells the label"
            found.append(f"{words}; if it is not known before the label is, leave it out: --drop {name}")
    return found


def _tells(group: np.ndarray, y: np.ndarray) -> bool:
    """Whether the label follows from a column: each value has one label, or, sorted, each label is one stretch."""
    classes = len(np.unique(y))
    if classes < 2:
        return False
    order = np.lexsort((y, group))
    changes = np.count_nonzero(np.diff(y[order]))
    values = group.max() + 1
    pairs = len(np.unique(group * classes + y))
    return pairs == values and (changes == classes - 1 or 2 * values <= len(y))
