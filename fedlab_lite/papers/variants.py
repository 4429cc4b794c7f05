"""Runs of a notebook with other parameters than its preset's: what they are called, and how a kernel is told."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

CHANGED = "FEDLAB_CHANGED"  # the variable in which the runner of a notebook tells the kernel what was changed


def changed() -> dict[str, Any]:
    """The parameters of this run that differ from the preset's, as the runner of the notebook says."""
    return json.loads(os.environ.get(CHANGED, "{}"))


def name_of(stem: str, changed: Mapping[str, Any]) -> str:
    """The file name of a run of the item `stem` whose parameters `changed` are not the preset's.

    A long name, or one with characters that are not safe in a file name, is cut and has a hash.

    >>> name_of("fig04", {}), name_of("fig04", {"rho": 0.1, "seeds": (0, 1)})
    ('fig04', 'fig04,rho=0.1,seeds=0+1')
    >>> name_of("fig04", {"dataset": "npz:mine"})
    'fig04,dataset=npz-mine-69065b2f'
    """
    if not changed:
        return stem
    text = ",".join(f"{name}={told(value)}" for name, value in sorted(changed.items()))
    safe = re.sub(r"[^\w.,=+-]", "-", text, flags=re.ASCII)
    if safe != text or len(text) > 60:
        safe = f"{safe[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"{stem},{safe}"


def told(value: Any) -> str:
    """A parameter's value as text: a list's entries are joined by +."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
