"""`fedlab runs prune`: files of the run store that are no longer needed, shown before they are removed."""

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedlab_lite.papers import presets, results
from fedlab_lite.runs import store
from fedlab_lite.util import CorruptFileError, files
from fedlab_lite.util.text import plain, say

OFFERED = "prune what no committed figure needs, your own figures' runs too, if unchanged for an hour"
IN_USE = 3600.0  # seconds since the last change within which a run may still be computed


def unneeded() -> dict[str, list[Path]]:
    """The files that can be removed, by what they are; what was changed within the last hour is not among them."""
    needed = {name for result in results.committed(presets.ALL).values() for name in result.get("runs", ())}
    found: dict[str, list[Path]] = {
        "checkpoints of runs that were not finished": [],
        "final states, which are computed again where they are asked for": [],
        "files that were damaged and set aside": [],
        "finished runs that no committed figure needs": [],
    }
    unfinished, states, damaged, finished = found.values()
    for file in sorted(files.runs_dir().glob("[!.]*")):
        kinds = {".ckpt": unfinished, ".state": states, ".corrupt": damaged}
        if file.name.partition(".")[0] not in needed:
            kinds[".npz"] = finished
        if file.is_file() and file.suffix in kinds and time.time() - file.stat().st_mtime > IN_USE:
            kinds[file.suffix].append(file)
    return found


def prune(args: argparse.Namespace) -> None:
    """List what is not needed, kind by kind, and remove it after a yes; nothing is removed with --dry-run."""
    files.sweep(files.runs_dir())
    figures: dict[str, list[str]] = {}  # that this machine drew, by the runs behind them
    for item, result in results.drafts().items():
        for name in result.get("runs", ()):
            figures.setdefault(name, []).append(str(item))
    for kind, found in unneeded().items():
        if not found:
            continue
        megabytes = sum(file.stat().st_size for file in found) / 1e6
        say(*(f"{file}{_about(file, figures)}" for file in found), f"{len(found):,} {kind}: {megabytes:,.1f} MB")
        if not args.dry_run and (args.yes or _agreed(f"remove these {len(found):,} files?")):
            for file in found:
                try:
                    file.unlink(missing_ok=True)
                except OSError as error:
                    raise files.cannot_write(file, error) from error
            say(f"removed {len(found):,} {kind}")
    say(f"{files.runs_dir()} has been looked through; what was changed within the last hour stays")


def _about(file: Path, figures: Mapping[str, Sequence[str]]) -> str:
    """What is known of the run that a file belongs to: algorithm, network, data, rounds, and this machine's figures."""
    name = file.name.partition(".")[0]
    known = []
    with suppress(CorruptFileError):
        if history := store.load_history(name):
            known.append(repr(history))
    own = ", ".join(figures.get(name, ()))
    known += [f"own figure {own}"] if own else []
    return f"  ({'; '.join(known)})" if known else ""


def _agreed(question: str) -> bool:
    """The answer of whoever sits at the terminal; no answer is a no."""
    try:
        return input(plain(f"{question} [y/N] ")).strip().lower() in ("y", "yes")
    except EOFError:
        say("")
        return False
