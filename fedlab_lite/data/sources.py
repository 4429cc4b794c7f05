"""Published data sets: official files, which are verified by their checksums.

They are looked for in `$FEDLAB_DATA`. A missing data set is a `MissingDataError` that lists the ways to get it. No
other data ever replace it.
"""

import gzip
import hashlib
import http.client
import io
import tarfile
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedlab_lite.data import formats, npz, text
from fedlab_lite.data.pool import Pool
from fedlab_lite.util import CorruptFileError, FedlabError, MissingDataError, choose, data_dir, write_atomic


@dataclass(frozen=True)
class Source:
    """The place where a data set is published, and the reader of its files."""

    url: str  # of the folder
    files: dict[str, str]  # name: MD5 or SHA-256 of the file as published; of a .gz (not .tar.gz) of its content
    read: Callable[[formats.Files], formats.Arrays]
    num_classes: int
    megabytes: int
    unpacked: tuple[str, ...] = ()  # files that `read` takes, from the archive or beside it (no published checksum)
    task: str = "classification"
    package: str = ""  # name of the package in Debian and Ubuntu
    package_dir: str = ""


def load(name: str) -> Pool:
    """Load a whole published data set.

    Images are uint8 `[n, height, width, channels]`, motion is float32 `[n, 900]`, text (x and y) int32 `[n, 16]`.

    Raises `MissingDataError` (with the ways to get it), `CorruptFileError` (a wrong checksum or an unreadable file), or
    `InputError` (unknown name, or a text in which no role has enough windows).

    Example:
      >>> pool = load("fashion_mnist")  # doctest: +SKIP
      >>> pool.x_train.shape, pool.source  # doctest: +SKIP
      ((60000, 28, 28, 1), 'fashion_mnist (official)')
    """
    kind, paths = there(name)
    source, words = SOURCES[name], describe(name)
    try:
        files = _opened(name, kind, paths)
        arrays = source.read(files)
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
    if not SOURCES[name].unpacked:
        return files
    with tarfile.open(fileobj=files[0]) as archive:
        members = {Path(member.name).name: member for member in archive if member.isfile()}
        return [io.BytesIO(archive.extractfile(members[each]).read()) for each in SOURCES[name].unpacked]  # type: ignore


def verified(name: str, file: str, content: bytes, where: object) -> bytes:
    """Return the content of a published file, of a .gz unpacked; raise `CorruptFileError` for a wrong checksum."""
    algorithm = "md5" if len(expected := SOURCES[name].files[file]) == 32 else "sha256"
    if Path(file).suffixes == [".gz"]:
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise npz.unreadable(where, error) from error
    if (found := hashlib.new(algorithm, content).hexdigest()) != expected:
        raise CorruptFileError(
            f"{where} is truncated or altered: {algorithm} is {found}, expected {expected}. Nothing was deleted or "
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
            with urllib.request.urlopen(url) as answer:
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
        f"put your own arrays into {npz.own_file(name)}: {', '.join(npz.KEYS)}, and {' and '.join(npz.OWNERS)} for "
        "partition 'natural'",
    ]
    if source.task == "next_character":
        ways[-1] += f"; x and y are ids `[n, length]` in 0 ... {source.num_classes - 1}, 0 being padding"
    if source.unpacked:
        ways.insert(2, f"or only what is in it: {' '.join(source.unpacked)}")
    if source.package:
        ways.insert(0, f"on Debian or Ubuntu, `apt-get install {source.package}`")
    return "Ways to get it:" + "".join(f"\n  - {way}" for way in ways)


_TFF = "https://storage.googleapis.com/tff-datasets-public/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))

SOURCES: dict[str, Source] = {
    "fashion_mnist": Source(
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files={
            "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        read=formats.read_idx,
        num_classes=10,
        megabytes=30,
        package="dataset-fashion-mnist",
        package_dir="/usr/share/datasets/fashion-mnist",
    ),
    "cifar10": Source(
        url=_CIFAR,
        files={"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        read=partial(formats.read_cifar, train=_BATCHES, test=("test_batch",), label=b"labels"),
        num_classes=10,
        megabytes=170,
    ),
    "cifar100": Source(
        url=_CIFAR,
        files={"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
        read=partial(formats.read_cifar, train=("train",), test=("test",), label=b"fine_labels"),
        num_classes=100,
        megabytes=170,
    ),
    "femnist": Source(
        url=_TFF,
        files={"fed_emnist.tar.bz2": "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0"},
        read=formats.read_femnist,
        num_classes=62,
        megabytes=170,
        unpacked=("fed_emnist_train.h5", "fed_emnist_test.h5"),
    ),
    "shakespeare": Source(
        url=_TFF,
        files={"shakespeare.tar.bz2": "0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707"},
        read=formats.read_shakespeare,
        num_classes=text.NUM_IDS,
        megabytes=2,
        unpacked=("shakespeare_train.h5", "shakespeare_test.h5"),
        task="next_character",
    ),
    "harbox": Source(
        url="https://github.com/xmouyang/FL-Datasets-for-HAR/raw/main/datasets/HARBox/",
        files={"large_scale_HARBox.zip": "4fdf91e26f698e2b5e349be2af08fb41a5ccd86e2254b4bd3b81eaf77959d12f"},
        read=formats.read_harbox,
        num_classes=5,
        megabytes=132,
    ),
}
