"""The meaning of a data set's name: embedded, official, or a user's own file; one never replaces another.

A bare name is accepted if only one of these exists. If two exist, the error names both, and a prefix selects one:
`npz:digits`, `embedded:digits` or `official:cifar10`.
"""

from collections.abc import Callable
from functools import partial

from fedlab_lite.data import motion, npz, roles, sources, synthetic
from fedlab_lite.data.pool import Pool
from fedlab_lite.util import InputError, MissingDataError, data_dir
from fedlab_lite.util.errors import did_you_mean

EMBEDDED: dict[str, Callable[..., Pool]] = {  # generated; they need no files
    "glyphs": synthetic.glyphs,
    "digits": synthetic.digits,
    "textures": partial(synthetic.textures, num_classes=10),
    "textures100": partial(synthetic.textures, num_classes=100),
    "motion": motion.motion,
    "roles": roles.roles,
}
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
    own_name = bool(name) and not name.startswith(".") and not set(name) & {"/", "\\", ":"} and name.isprintable()
    known = {"embedded": name in EMBEDDED, "official": name in sources.SOURCES, "npz": own_name}
    if known.get(kind, name in DATASETS or (own_name and npz.has_own(name))):
        return
    names = [*DATASETS, *npz.own_names()]
    hint = did_you_mean(name, names) or f" (known: {', '.join(names)})"
    path = data_dir() / f"{name if own_name else 'NAME'}.npz"
    raise InputError(f"unknown data set {dataset!r}{hint} Your own file {path} does not exist")


def here(name: str) -> dict[str, str]:
    """What is called `name` on this machine: words by kind."""
    found = {
        "embedded": name in EMBEDDED and f"the embedded {name}",
        "official": name in sources.SOURCES and sources.find(name) and f"the official {name}",
        "npz": npz.has_own(name) and f"your own file {npz.own_file(name)}",
    }
    return {kind: words for kind, words in found.items() if words}


def kind_of(dataset: str) -> str:
    """The kind that a name means here: 'embedded', 'official' or 'npz'; raises `InputError` if it may be two."""
    check(dataset)
    kind, name = split(dataset)
    if kind:
        return kind
    there = here(name)
    if len(there) > 1:
        choices = " or ".join(f"{kind}:{name}" for kind in there)
        raise InputError(f"two data sets have the name {name!r}: {' and '.join(there.values())}. Choose one: {choices}")
    return next(iter(there), "official")


def load(dataset: str) -> Pool:
    """Load a whole data set that is not embedded; a user's file of a published name must have its labels."""
    name = split(dataset)[1]
    return sources.load(name) if kind_of(dataset) == "official" else npz.read(npz.own_file(name), published(name))


def published(name: str) -> int | None:
    """The number of classes of the published data set of this name; None for any other name."""
    return sources.SOURCES[name].num_classes if name in sources.SOURCES else None


def describe(dataset: str) -> str:
    """Describe in words where the rows come from: 'embedded digits', 'own file mydigits.npz, sha256 ...'."""
    kind, name = kind_of(dataset), split(dataset)[1]
    if kind == "embedded":
        return f"embedded {name}"
    try:
        return sources.describe(name) if kind == "official" else load(dataset).source
    except MissingDataError:
        return f"{name} (not on this machine: stored runs)"


def stamp(dataset: str) -> object:
    """A value that changes when the user's own file of this name does."""
    kind, name = split(dataset)
    return npz.stamp(npz.own_file(name)) if kind in ("", "npz") else None
