"""User errors, each with a fix: the message says what was wrong and what to do about it.

The command line prints these errors without a traceback and exits with code 2. Any other error is a bug.
"""

import difflib


class FedlabError(Exception):
    """Base class of all errors that correct input, or a missing file, would prevent."""


class InputError(FedlabError, ValueError):
    """A value, a name or a shape that cannot be used.

    Example:
      >>> import fedlab_lite as fl
      >>> try:
      ...     fl.make_model("mpl", (8, 8, 1), 10)
      ... except fl.InputError as error:
      ...     print(error)
      unknown model 'mpl'; did you mean 'mlp'?
    """


class MissingDataError(FedlabError, FileNotFoundError):
    """A real data set that is not on this machine; the message lists the ways to get it."""


class NotStoredError(FedlabError):
    """Runs that are not stored yet, where only stored runs may be shown."""


class CorruptFileError(FedlabError, OSError):
    """A file that exists but cannot be trusted: truncated, altered or unreadable."""


class OutputError(FedlabError, OSError):
    """A result that could not be written (read-only folder, full disk); no partial file is left."""


def choose(kind: str, name: str, options) -> None:
    """Raise `InputError` unless `name` is one of `options`.

    The message suggests similar options, or lists all options if none is similar.

    >>> choose("preset", "quikc", ["quick", "laptop"])
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: unknown preset 'quikc'; did you mean 'quick'?
    >>> choose("preset", "huge", ["quick", "laptop"])
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: unknown preset 'huge' (known: laptop, quick)
    """
    options = sorted(options)
    if name not in options:
        hint = did_you_mean(str(name), options) or f" (known: {', '.join(options)})"
        raise InputError(f"unknown {kind} {name!r}{hint}")


def did_you_mean(name: str, options) -> str:
    """The end of a message that suggests similar options; empty if none is similar.

    >>> did_you_mean("quikc", ["quick", "laptop"])
    "; did you mean 'quick'?"
    """
    near = difflib.get_close_matches(name, options)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
