"""Published data sets: official files, which are verified by their checksums.

They are looked for in `$FEDLAB_DATA`. A missing data set is a `MissingDataError` that lists the ways to get it. No
other data ever replace it.
"""

import gzip
import hashlib
import http.client
import io
import tomllib
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedlab_lite.data import formats, npz, text
from fedlab_lite.data.pool import Pool
from fedlab_lite.util import CorruptFileError, FedlabError, MissingDataError, choose, data_dir, write_atomic


@dataclass(frozen=True)
class Source:
    """An entry of `sources.toml`, which says what the fields are, and the reader of its files."""

    about: str
    url: str
    files: dict[str, str]
    read: Callable[[formats.Files], formats.Arrays]
    num_classes: int
    megabytes: int
    unpacked: Sequence[str] = ()
    task: str = "classification"
    package: str = ""
    package_dir: str = ""


def load(name: str) -> Pool:
    """Load a whole published data set.

    Images are uint8 `[n, height, width, channels]`, motion is float32 `[n, 900]`, text (x and y) int32 `[n, 16]`.

    Raises:
      MissingDataError: it is not here; the message lists the ways to get it.
      CorruptFileError: a wrong checksum, or an unreadable file.
      InputError: an unknown name, or a text in which no role has enough windows.

    Example:
      >>> pool = load("fashion_mnist")  # doctest: +SKIP
      >>> pool.x_train.shape, pool.source  # doctest: +SKIP
      ((60000, 28, 28, 1), 'fashion_mnist (official)')
    """
    kind, paths = there(name)
    source, words = SOURCES[name], describe(name)
    try:
        arrays = source.read(_opened(name, kind, paths))
    except FedlabError:
        raise
    except Exception as error:  # a reader may raise anything for a damaged or crafted file
        raise npz.unreadable(paths[0] if len(paths) == 1 else paths[0].parent, error) from error
    if source.task == "next_character":
        unknown = sum(int((arrays[key] == text.OOV).sum()) for key in ("x_train", "x_test"))
        words = f"{words.removesuffix(')')}, characters out of vocabulary: {unknown})"
    return Pool(**arrays, name=name, source=words, num_classes=source.num_classes, task=source.task)


def describe(name: str) -> str:
    """Describe in words where the rows of `load(name)` come from; raises as `load` does, but verifies nothing."""
    kind, paths = there(name)
    if kind == "official":
        return f"{name} (official)"
    digests = ""
    for path in paths:
        with open(path, "rb") as file:
            digests += hashlib.file_digest(file, "sha256").hexdigest()
    return f"{name} (unpacked, sha256 {hashlib.sha256(digests.encode()).hexdigest()[:12]})"


def find(name: str) -> tuple[str, list[Path]] | None:
    """Find the published files of `name` on this machine: ("official" | "unpacked", paths), or None."""
    source = SOURCES[name]
    places = [("official", data_dir(), source.files), ("unpacked", data_dir(), source.unpacked)]
    for kind, folder, names in (*places, ("official", Path(source.package_dir or data_dir()), source.files)):
        paths = [folder / each for each in names]
        if paths and all(path.is_file() for path in paths):
            return kind, paths
    return None


def there(name: str) -> tuple[str, list[Path]]:
    """What `find` finds; raises `MissingDataError` where it finds nothing."""
    choose("data set", name, SOURCES)
    if (found := find(name)) is None:
        raise MissingDataError(f"{name} is not on this machine. {how_to_get(name)}")
    return found


def _opened(name: str, kind: str, paths: list[Path]) -> formats.Files:
    """The files that the reader of `name` takes: verified, and unpacked into memory, where they were published."""
    if kind == "unpacked":
        return paths
    files = [io.BytesIO(verified(name, path.name, path.read_bytes(), path)) for path in paths]
    inside = SOURCES[name].unpacked
    return formats.members(files[0], inside) if inside else files


def verified(name: str, file: str, content: bytes, where: object) -> bytes:
    """Return the content of a published file, of a .gz unpacked; raise `CorruptFileError` for a wrong checksum."""
    if Path(file).suffixes == [".gz"]:
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise npz.unreadable(where, error) from error
    if (found := hashlib.sha256(content).hexdigest()) != (expected := SOURCES[name].files[file]):
        raise CorruptFileError(
            f"{where} is truncated or altered: sha256 is {found}, expected {expected}. Nothing was deleted or "
            f"written; move a damaged file away and run `fedlab data fetch {name}`"
        )
    return content


def fetch(name: str) -> list[Path]:
    """Download the official files of `name` into `$FEDLAB_DATA`, unless they are there; return the paths.

    A file is written when its checksum is right. A damaged one that is there is reported, never overwritten or deleted.
    Raises `MissingDataError` when the download fails.
    """
    choose("data set", name, SOURCES)
    if (found := find(name)) is not None and found[0] == "unpacked":
        return found[1]
    source = SOURCES[name]
    paths = found[1] if found else [data_dir() / file for file in source.files]
    for path in paths:
        if path.exists():
            verified(name, path.name, path.read_bytes(), path)
            continue
        url = source.url + path.name
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310  (an address of sources.toml)
                content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise MissingDataError(f"could not fetch {url} into {data_dir()}: {error}. {how_to_get(name)}") from error
        verified(name, path.name, content, url)
        write_atomic(path, content)
    return paths


def how_to_get(name: str) -> str:
    """List every way to get a data set, as text for an error message."""
    source = SOURCES[name]
    ways = [
        f"run `fedlab data fetch {name}` (about {source.megabytes} MB from {source.url})",
        f"put {' '.join(source.files)} from there into {data_dir()} (FEDLAB_DATA chooses another folder)",
    ]
    if source.unpacked:
        ways.append(f"or only the files in it: {' '.join(source.unpacked)}")
    if source.task == "classification":
        arrays = f"{', '.join(npz.KEYS)}, and {' and '.join(npz.OWNERS)} for partition 'natural'"
        ways.append(f"put your own arrays into {npz.own_file(name)}: {arrays}")
    if source.package:
        ways.insert(0, f"on Debian or Ubuntu, `apt-get install {source.package}`")
    return "Ways to get it:" + "".join(f"\n  - {way}" for way in ways)


_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
_READERS: dict[str, Callable[[formats.Files], formats.Arrays]] = {
    "fashion_mnist": formats.read_idx,
    "cifar10": partial(formats.read_cifar, train=_BATCHES, test=("test_batch",), label=b"labels"),
    "cifar100": partial(formats.read_cifar, train=("train",), test=("test",), label=b"fine_labels"),
    "femnist": formats.read_femnist,
    "shakespeare": formats.read_shakespeare,
    "harbox": formats.read_harbox,
}
_PUBLISHED = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
SOURCES = {name: Source(read=_READERS[name], **about) for name, about in _PUBLISHED.items()}
