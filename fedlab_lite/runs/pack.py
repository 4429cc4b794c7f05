"""Carry runs from one machine to another: packs of at most 16 MiB, which are checked as a whole before they are merged.

A pack is a zip file with files of the store and `manifest.json`. This has the versions that made the pack, each file's
SHA-256, and what each run's name was made of.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fedlab_lite
from fedlab_lite.engine import training
from fedlab_lite.runs import store
from fedlab_lite.runs.batch import Run
from fedlab_lite.runs.names import name_here
from fedlab_lite.util import CorruptFileError, InputError, files, write_atomic
from fedlab_lite.util.forms import check_form

LIMIT = 16 << 20  # bytes of a pack
FORM = 2  # of the manifest
_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}\.(?:[A-Za-z0-9_-]+\.)*(?:npz|ckpt|state)")
_MANIFEST: dict[str, Any] = {"sha256": {"": str}, "runs": {"": {"settings": str, "seed": int}}}


def check(file: Path) -> None:
    """Raise `InputError` for a pack of which a part exists already, or whose name has another ending than .zip.

    Raises `OutputError` where its folder cannot be written.
    """
    if file.suffix != ".zip":
        raise InputError(f"{file}: a pack is a file <name>.zip; choose this ending")
    part = re.compile(rf"{re.escape(file.stem)}(-\d+)?\.zip")
    for each in sorted(file.parent.glob("*.zip")):
        if part.fullmatch(each.name):
            raise InputError(f"{each} exists already; move it away, or choose another name")
    files.check_writable(file.parent)


def pack(runs: Iterable[Run], file: Path, limit: int = LIMIT) -> tuple[list[Path], list[Path]]:
    """Pack the store's files of these runs, finished or begun, into `file`, and as many more (-2, -3) as it takes.

    Returns: the packs, and the files that are left out, because each of them fills more than a pack.
    Raises: as `check`.
    """
    check(file)
    known = {name: {"settings": settings.canonical(), "seed": seed} for name, settings, seed in runs}
    there = [path for name in known for path in files.runs_dir().glob(f"{name}.*")]
    parts: list[list[Path]] = [[]]
    left, room = [], limit
    for each in sorted(path for path in there if _NAME.fullmatch(path.name)):
        size = each.stat().st_size + 1024 + len(json.dumps(known[each.name[:49]]))  # with zip's and manifest's entries
        if size > limit - 1024:
            left.append(each)
            continue
        if size > room - 1024:
            parts.append([])
            room = limit
        parts[-1].append(each)
        room -= size
    written = []
    for number, part in enumerate(filter(None, parts), start=1):
        target = file if number == 1 else file.with_stem(f"{file.stem}-{number}")
        written.append(write_atomic(target, _packed(part, known)))
    return written, left


def _packed(part: list[Path], known: dict[str, dict]) -> bytes:
    contents = {each.name: each.read_bytes() for each in part}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    runs = {name[:49]: known[name[:49]] for name in contents}
    about = {"form": FORM, "engine": training.ENGINE, "package": fedlab_lite.__version__}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # the files are compressed already
        archive.writestr("manifest.json", json.dumps(about | {"sha256": digests, "runs": runs}))
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def merge(file: Path) -> tuple[list[str], dict[str, str]]:
    """Add a pack's files to the store, none before all are checked.

    What the store has stays, but of two checkpoints of a run the further one.

    Returns: the names of the files that were added, and of the others, each with the reason.
    Raises: `InputError` for a pack of another version or a missing file, `CorruptFileError` for a damaged one.
    """
    if not file.is_file():
        raise InputError(f"{file} does not exist; give the path of a pack that `fedlab compute --pack` wrote")
    try:
        with zipfile.ZipFile(file) as archive:
            if (size := sum(each.file_size for each in archive.infolist())) > 2 * LIMIT:
                raise ValueError(f"it would unpack to {size:,} bytes")
            about = json.loads(archive.read("manifest.json"))
            versions, package = (about["form"], about["engine"]), about.get("package")
            if versions == (FORM, training.ENGINE):
                check_form("its manifest", {name: about.get(name) for name in _MANIFEST}, _MANIFEST)
                if not about["sha256"]:
                    raise ValueError("its manifest names no file")
                contents = {name: archive.read(name) for name in about["sha256"]}
    except Exception as error:  # zip and JSON raise many kinds for a damaged or crafted file
        why = f"{type(error).__name__}: {error}"
        raise CorruptFileError(f"{file} is damaged or no pack ({why}); copy it again") from error
    if versions != (FORM, training.ENGINE):
        form, engine = versions
        raise InputError(
            f"{file} was made by fedlab_lite {package} (form {form}, engine {engine}), and this version "
            f"has form {FORM}, engine {training.ENGINE}: its runs have other names here. Merge it with that version"
        )
    for name, content in contents.items():
        if not _NAME.fullmatch(name) or hashlib.sha256(content).hexdigest() != about["sha256"][name]:
            raise CorruptFileError(f"{file} is damaged: {name[:80]!r} is not what was packed; copy the pack again")
    if other := [name for name in contents if not _named_here(name, about["runs"])]:
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        raise InputError(
            f"{file} was made by fedlab_lite {package}, where an algorithm or a network has another version than here: "
            f"no settings here give the name {other[0]}{more}. Merge it with that version"
        )
    reasons = {name: _reason(file, name, content) for name, content in contents.items()}
    new = [name for name, reason in reasons.items() if not reason]
    for name in new:
        write_atomic(files.runs_dir() / name, contents[name])
    return new, {name: reason for name, reason in reasons.items() if reason}


def _named_here(name: str, runs: dict[str, dict]) -> bool:
    """Whether this version gives a file's run the name that it has."""
    try:
        return name_here(**runs[name[:49]]) == name[:32]
    except (KeyError, TypeError, ValueError, RecursionError):  # `InputError`, too: settings that are unknown here
        return False


def _reason(file: Path, name: str, content: bytes) -> str:
    """Why a pack's file is not taken; '' for one that is."""
    run, kind = name[:49], name[50:]
    if kind != "ckpt":
        return "it is stored" if store.find(run, kind) else ""
    if store.find(run):
        return "its run is finished here"
    own = store.load_checkpoint(store.path(run, kind))
    try:
        packed = store.load_checkpoint(Path(name), content)
    except CorruptFileError as error:
        raise CorruptFileError(f"{file} has a checkpoint that cannot be read, {name}; copy the pack again") from error
    here, there = (-1 if found is None else found[1].next for found in (own, packed))
    return f"the store's checkpoint is at round {here}, the pack's at round {there}" if here >= there else ""
