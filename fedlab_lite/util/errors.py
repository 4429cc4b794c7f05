"""The errors a user can cause and mend. Each message says what was wrong and what to do about it.

The command line prints these without a traceback and exits with 2; anything else is a bug.
"""


class FedlabError(Exception):
    """Base of all errors that better input, or the missing file, would prevent."""


class InputError(FedlabError, ValueError):
    """A value, a name or a shape that cannot be used."""


class MissingDataError(FedlabError, FileNotFoundError):
    """A real data set that is not on this machine; the message names the ways to get it."""


class NotStoredError(FedlabError):
    """Runs that nobody has computed yet, where only stored ones may be shown."""


class CorruptFileError(FedlabError, OSError):
    """A file that is there but cannot be trusted: truncated, altered or unreadable."""


class OutputError(FedlabError, OSError):
    """A result that could not be written (read-only folder, full disk); nothing half-written is left."""


class BudgetWarning(UserWarning):
    """A run that stopped before its last round, because a privacy budget was used up."""


def choose(kind: str, name: str, options) -> None:
    """Raise `InputError` unless `name` is one of `options`: with the near ones, or with all where none is near.

    >>> choose("preset", "quikc", ["quick", "laptop"])
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: unknown preset 'quikc'; did you mean 'quick'?
    >>> choose("preset", "huge", ["quick", "laptop"])
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: unknown preset 'huge' (known: laptop, quick)
    """
    import difflib

    options = sorted(options)
    if name in options:
        return
    near = difflib.get_close_matches(str(name), options, n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else f" (known: {', '.join(options)})"
    raise InputError(f"unknown {kind} {name!r}{hint}")
