"""Memory, looked at before it is taken."""

import os
from pathlib import Path

from fedlab_lite.util.errors import InputError


def free_memory() -> int | None:
    """The bytes of memory that this process can still get, within a container's limit; None: not known."""
    known = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        if "SC_AVPHYS_PAGES" in os.sysconf_names:
            known.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        folder = Path("/sys/fs/cgroup") if limit == "memory.max" else Path("/sys/fs/cgroup/memory")
        try:
            known.append(
                int((folder / limit).read_text(encoding="ascii")) - int((folder / used).read_text(encoding="ascii"))
            )
        except (OSError, ValueError):  # no limit ("max")
            continue
    return max(0, min(known)) if known else None


def check_memory(what: object, needed: int, advice: str) -> None:
    """Raise `InputError` where `what` would take more bytes of memory than are free.

    >>> check_memory("a row", 8, "take fewer rows")
    >>> check_memory("a table", 2**60, "take fewer rows")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedlab_lite.util.errors.InputError: a table would take 1,073,741,824.0 GiB of memory, but ... GiB are free; \
take fewer rows
    """
    free = free_memory()
    if free is not None and needed > free:
        size, left = (f"{count / 2**30:,.1f}" for count in (needed, free))
        raise InputError(f"{what} would take {size} GiB of memory, but {left} GiB are free; {advice}")
