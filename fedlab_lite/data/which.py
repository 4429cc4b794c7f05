"""The meaning of a data set's name: embedded, official, or a user's own file; one never replaces another.

A bare name is accepted if only one of these exists. If two exist, the error names both, and a prefix selects one:
`npz:digits`, `embedded:digits` or `official:cifar10`.
"""

import difflib

from fedlab_lite.data import npz, sources
from fedlab_lite.data.npz import has_own, own_file, own_files
from fedlab_lite.data.sources import EMBEDDED
from fedlab_lite.util import InputError, MissingDataError, data_dir

DATASETS = (*EMBEDDED, *sources.SOURCES)
KINDS = ("embedded", "official", "npz")


def split(dataset: str) -> tuple[str, str]:
    """The kind ('' for a name without a prefix) and the bare name.

    >>> split("npz:digits"), split("digits")
    (('npz', 'digits'), ('', 'digits'))
    """
    kind, colon, name = dataset.partition(":")
    return (kind, name) if colon and kind in KINDS else ("", dataset)


def check(dataset: str) -> None:
    """Raise `InputError`, suggesting similar names, for an unknown data set; `npz:<name>` need not exist yet."""
    kind, name = split(dataset)
    own_name = _is_file_name(name)
    if {"embedded": name in EMBEDDED, "official": name in sources.SOURCES, "npz": own_name}.get(kind, False):
        return
    if not kind and (name in DATASETS or (own_name and has_own(name))):
        return
    known = [*DATASETS, *(file.stem for file in own_files())]
    near = difflib.get_close_matches(name, known, n=2)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else f" (known: {', '.join(known)})"
    path = data_dir() / f"{name if own_name else 'NAME'}.npz"
    raise InputError(f"unknown data set {dataset!r}{hint} Or one of your own: {path} is not there")


def _is_file_name(name: str) -> bool:
    return bool(name) and not name.startswith(".") and not set(name) & {"/", "\\", ":", "\0"}


def kind_of(dataset: str) -> str:
    """The kind that a name means here: 'embedded', 'official' or 'npz'; raises `InputError` if it may be two."""
    check(dataset)
    kind, name = split(dataset)
    if kind:
        return kind
    found = {
        "embedded": name in EMBEDDED and f"the embedded {name}",
        "official": sources.has_official(name) and f"the official {name}",
        "npz": has_own(name) and f"your own file {own_file(name)}",
    }
    there = {kind: words for kind, words in found.items() if words}
    if len(there) > 1:
        choices = " or ".join(f"{kind}:{name}" for kind in there)
        raise InputError(f"two data sets are called {name!r}: {' and '.join(there.values())}. Say which: {choices}")
    return next(iter(there), "official")


def describe(dataset: str) -> str:
    """Describe in words where the rows come from: 'embedded digits', 'own file mydigits.npz, sha256 ...'."""
    kind, name = kind_of(dataset), split(dataset)[1]
    try:
        return f"embedded {name}" if kind == "embedded" else sources.describe(name, kind)
    except MissingDataError:
        return f"{name} (not on this machine: stored runs)"


def stamp(dataset: str) -> object:
    """A value that changes when the user's own file of this name does."""
    kind, name = split(dataset)
    return npz.stamp(own_file(name)) if kind in ("", "npz") else None
