"""Parameters of a notebook that are not its preset's: on the command line, in the names of files, for a kernel."""

import ast
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from fedlab_lite.util.fields import UNREADABLE

CHANGED = "FEDLAB_CHANGED"  # the variable in which the runner of a notebook tells the kernel what was changed


def parsed(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parse `-p NAME VALUE` pairs; a value that is not a Python literal is text.

    >>> parsed([("lr", "0.1"), ("graph", "ring"), ("name", "'0.1'")])
    {'lr': 0.1, 'graph': 'ring', 'name': '0.1'}
    """
    values = {}
    for name, text in pairs:
        try:
            values[name] = ast.literal_eval(text)
        except (TypeError, *UNREADABLE):
            values[name] = text
    return values


def given(values: Mapping[str, Any]) -> str:
    """The options of a command line for these parameters, quoted for a shell; `parsed` reads the values back.

    >>> given({"lr": 0.1, "graph": "ring", "dataset": "$(rm x)"})
    "-p lr 0.1 -p graph ring -p dataset '$(rm x)'"
    """

    def written(value: Any) -> str:
        bare = isinstance(value, str) and value.isprintable() and not value.startswith("-")
        return value if bare and parsed([("", value)]) == {"": value} else repr(value)

    return shlex.join(word for name, value in values.items() for word in ("-p", name, written(value)))


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
