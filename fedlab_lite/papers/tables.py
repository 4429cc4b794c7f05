"""The tables of `fedlab list`: the notebooks, and the names that the settings of a run may have."""

import inspect
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.table import Table

from fedlab_lite.algorithms import ALGORITHMS, algorithm_defaults, algorithm_options, option_words
from fedlab_lite.data import EMBEDDED, npz, sources
from fedlab_lite.nn import MODELS, model_defaults, model_options
from fedlab_lite.papers import presets, report
from fedlab_lite.runs import Settings
from fedlab_lite.util import InputError, files
from fedlab_lite.util.errors import did_you_mean
from fedlab_lite.util.fields import Allowed, Range, rules_of, type_name
from fedlab_lite.util.text import plain

TIMES = "quick, laptop: about, on two cores; ≥: at least, at 20 TFLOP/s (--floors); pages add up the time of all runs"


def console() -> Console:
    """The terminal, of at least 80 columns, or a page of 160. A formula's brackets are no markup."""
    plain = {"highlight": False, "markup": False, "emoji": False}
    width = max(80, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 160
    return Console(width=width, **plain)


def table(pattern: str, name: str | None = None) -> Table:
    """The table of a register, if `pattern` is its name, or else of the notebooks that match.

    Args:
      name: of an algorithm or a network, whose options are shown.

    Raises `InputError`, which suggests similar names, if nothing matches.
    """
    if name is None:
        return REGISTERS[pattern]() if pattern in REGISTERS else notebooks(pattern)
    if pattern not in ("algorithms", "models"):
        raise InputError(f"algorithms and models have options, not {pattern}: `fedlab list algorithms NAME`")
    return options(pattern, name)


def options(register: str, name: str) -> Table:
    """The options of an algorithm or a network: `-p OPTION VALUE`."""
    if register == "algorithms":
        rows = _values("option", algorithm_options(name), algorithm_defaults(name), option_words(ALGORITHMS[name]))
        rows.title = _words(ALGORITHMS[name])
    else:
        rows = _values("option", model_options(name), model_defaults(name))
        rows.title = str(inspect.getdoc(MODELS[name][0])).partition("\nExample:")[0]
    rows.title_justify = "left"
    return rows


def notebooks(pattern: str) -> Table:
    """The notebooks that match, what they show, and how long they take at each preset."""
    try:
        found = presets.items(pattern, presets.ALL)
    except InputError as error:
        raise InputError(f"{error}{did_you_mean(pattern, REGISTERS)}") from error
    rows = Table("notebook", "what it shows", *presets.PRESETS, show_lines=True, caption=files.or_clone(TIMES))
    for item in found:
        times = [report.time_of(item, preset) for preset in presets.PRESETS]
        rows.add_row(str(item), presets.item(*item)["title"], *times)
    return rows


def settings() -> Table:
    """The settings of a run: `-p NAME VALUE`; options of its algorithm and its network are given in the same way."""
    defaults = {field.name: field.default for field in fields(Settings)}
    return _values("setting", rules_of(Settings), defaults, option_words(Settings))


def algorithms() -> Table:
    """The algorithms: `-p algorithm NAME`."""
    rows = _register("algorithm", "what it does")
    for name, kind in ALGORITHMS.items():
        rows.add_row(name, _words(kind))
    return rows


def models() -> Table:
    """The networks: `-p model NAME`, and the options that a name sets."""
    rows = _register("model", "what it is", "options that it sets")
    for name, (kind, options) in MODELS.items():
        rows.add_row(name, _words(kind), _given(options))
    return rows


def datasets() -> Table:
    """The data sets: `-p dataset NAME`, and whether they are here."""
    rows = _register("data set", "kind", "here", "what is in it")
    rows.caption = "`fedlab data fetch NAME` downloads a published data set"
    for name, make in EMBEDDED.items():
        given = _given(getattr(make, "keywords", {}))
        rows.add_row(name, "embedded", "yes", " ".join(filter(None, (_words(getattr(make, "func", make)), given))))
    for name, source in sources.SOURCES.items():
        rows.add_row(name, "published", "yes" if sources.find(name) else "no", source.about)
    for name in npz.own_names():
        rows.add_row(plain(f"npz:{name}", ""), "your own", "yes", plain(npz.own_file(name), ""))
    return rows


def _values(
    name: str, known: Mapping[str, Allowed], defaults: Mapping, words: Mapping[str, str] | None = None
) -> Table:
    """A table of values that one may set: default, what each may be, and in words what it is."""
    rows = _register(name, "default", "what it may be", *(["what it is"] if words else []))
    for each, (hint, rule) in known.items():
        numbers = isinstance(rule, Range)
        may = f"{type_name(hint)}, {rule}" if numbers else " | ".join(map(repr, rule or ())) or type_name(hint)
        rows.add_row(each, str(defaults[each]) or "''", may, *([words[each]] if words else []))
    return rows


def _register(name: str, *columns: str) -> Table:
    """An empty table whose first column, the names, is never cut."""
    rows = Table()
    rows.add_column(name, no_wrap=True)
    for column in columns:
        rows.add_column(column)
    return rows


def _given(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{option} {value}" for option, value in options.items())


def _words(thing: Any) -> str:
    """The first line of a docstring."""
    return str(inspect.getdoc(thing)).partition("\n")[0]


REGISTERS: dict[str, Callable[[], Table]] = {
    "settings": settings,
    "algorithms": algorithms,
    "models": models,
    "datasets": datasets,
}
