"""Carry runs from one machine to another: packs of at most 16 MiB, which are checked as a whole before they are merged.

A pack is a zip file with files of the store and `manifest.json`: the versions that made it, and each file's SHA-256.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import fedlab_lite
from fedlab_lite.engine import training
from fedlab_lite.runs import store
from fedlab_lite.util import CorruptFileError, InputError, files, write_atomic

LIMIT = 16 << 20  # bytes of a pack
FORM = 1  # of the manifest
_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}\.(?:[A-Za-z0-9_-]+\.)*(?:npz|ckpt)")


def check(file: Path) -> None:
    """Raise `InputError` for a pack that exists already, or has another ending than .zip."""
    if file.suffix != ".zip":
        raise InputError(f"{file}: a pack is a file <name>.zip; choose this ending")
    if file.exists():
        raise InputError(f"{file} exists already; move it away, or choose another name")


def pack(names: Iterable[str], file: Path, limit: int = LIMIT) -> list[Path]:
    """Pack the store's files of these runs, finished or begun, into `file`, and as many more (-2, -3) as it takes.

    Files that fill more than a pack are left out. Raises `InputError`, see `check`.
    """
    check(file)
    parts: list[list[Path]] = [[]]
    room = limit
    there = [path for name in names for path in files.runs_dir().glob(f"{name}.*")]
    for each in sorted(path for path in there if _NAME.fullmatch(path.name)):
        size = each.stat().st_size + 1024  # its entries in the zip file and in the manifest
        if size > limit - 1024:
            continue
        if size > room - 1024:
            parts.append([])
            room = limit
        parts[-1].append(each)
        room -= size
    written = []
    for number, part in enumerate(filter(None, parts), start=1):
        target = file if number == 1 else file.with_stem(f"{file.stem}-{number}")
        check(target)
        written.append(write_atomic(target, _packed(part)))
    return written


def _packed(part: list[Path]) -> bytes:
    contents = {each.name: each.read_bytes() for each in part}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    about = {"form": FORM, "engine": training.ENGINE, "package": fedlab_lite.__version__, "sha256": digests}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # the files are compressed already
        archive.writestr("manifest.json", json.dumps(about))
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def merge(file: Path) -> tuple[list[str], list[str]]:
    """Add a pack's files to the store, none before all are checked; what the store has already stays.

    Returns: the names of the files that were added, and of those that were there.
    Raises: `InputError` for a pack of another version or a missing file, `CorruptFileError` for a damaged one.
    """
    if not file.is_file():
        raise InputError(f"{file} does not exist; give the path of a pack that `fedlab compute --pack` wrote")
    try:
        with zipfile.ZipFile(file) as archive:
            if (size := sum(each.file_size for each in archive.infolist())) > 2 * LIMIT:
                raise ValueError(f"it would unpack to {size:,} bytes")
            about = json.loads(archive.read("manifest.json"))
            form, engine, digests = about["form"], about["engine"], about["sha256"]
            contents = {name: archive.read(name) for name in digests}
    except Exception as error:  # zip and JSON raise many kinds for a damaged or crafted file
        why = f"{type(error).__name__}: {error}"
        raise CorruptFileError(f"{file} is damaged or no pack ({why}); copy it again") from error
    if (form, engine) != (FORM, training.ENGINE):
        raise InputError(
            f"{file} was made by fedlab_lite {about.get('package')} (form {form}, engine {engine}), and this version "
            f"has form {FORM}, engine {training.ENGINE}: its runs have other names here. Merge it with that version"
        )
    for name, content in contents.items():
        if not _NAME.fullmatch(name) or hashlib.sha256(content).hexdigest() != digests[name]:
            raise CorruptFileError(f"{file} is damaged: {name[:80]!r} is not what was packed; copy the pack again")
    new = [name for name in contents if not store.find(name[:49], name[50:])]
    for name in new:
        write_atomic(files.runs_dir() / name, contents[name])
    return new, sorted(contents.keys() - set(new))
