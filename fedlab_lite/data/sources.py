"""Real data sets by name: a user's own `<name>.npz` (see `npz`), or official files, verified by their checksums.

They are looked for in `$FEDLAB_DATA`. A missing data set is a `MissingDataError` that lists the ways to get it. No
other data ever replace it. Where an own file and official files both exist, `which` asks which one is meant.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedlab_lite.data import npz, text
from fedlab_lite.data.container import Pool
from fedlab_lite.data.formats import (
    Arrays,
    gunzip,
    read_cifar,
    read_femnist,
    read_harbox,
    read_idx,
    read_shakespeare,
    unpack,
    unreadable,
)
from fedlab_lite.data.npz import NPZ_KEYS, OWNERS, has_own, own_file, own_files
from fedlab_lite.util import CorruptFileError, FedlabError, InputError, MissingDataError, choose, data_dir

EMBEDDED = ("glyphs", "digits", "textures", "textures100", "motion", "roles")  # generated; they need no files


class Status(NamedTuple):
    """One row of `status()`; state is 'ready', 'damaged' or 'missing'."""

    name: str
    state: str
    source: str
    how: str


@dataclass(frozen=True)
class File:
    """A published file; `content` is the SHA-256 of the unpacked .gz, for copies that were compressed again."""

    name: str
    checksum: str  # "md5:..." or "sha256:..." of the file as published
    content: str = ""


@dataclass(frozen=True)
class Source:
    """The place where a data set is published, and the reader of its files."""

    url: str  # of the folder
    files: tuple[File, ...]
    read: Callable[[list[Path]], Arrays]
    num_classes: int
    megabytes: int
    unpacked: tuple[str, ...] = ()  # files that `read` takes, from the archive or beside it (no published checksum)
    length: int = 0  # of a sequence, if samples are sequences of ids
    package: str = ""  # name of the package in Debian and Ubuntu
    package_dir: str = ""

    def read_archive(self, paths: list[Path]) -> Arrays:
        return self.read(unpack(paths[0], self.unpacked))


def load(name: str, kind: str = "") -> Pool:
    """Load a whole real data set; `kind` is 'npz' (a user's own file), 'official', or '' (whichever exists).

    Images are uint8 `[n, height, width, channels]`, motion is float32 `[n, 900]`, text (x and y) int32 `[n, 16]`. A
    user's own file may hold other shapes and types.

    Raises `MissingDataError` (with the ways to get it), `CorruptFileError` (a wrong checksum or an unreadable file), or
    `InputError` (unknown name, an .npz of the wrong form, or a text in which no role has enough windows).

    Example:
      >>> pool = load("fashion_mnist")  # doctest: +SKIP
      >>> pool.x_train.shape, pool.source  # doctest: +SKIP
      ((60000, 28, 28, 1), 'fashion_mnist (official)')
    """
    kind, paths = _there(name, kind)
    if kind == "npz":
        found = _read_own(name)
        arrays, task, num_classes = found.arrays, found.task, found.num_classes
    else:
        published = SOURCES[name]
        num_classes, task = published.num_classes, "next_character" if published.length else "classification"
        if kind == "official":
            _verify(name, paths)
        whole = kind == "official" and published.unpacked
        arrays = _reading(paths, published.read_archive if whole else published.read)
    source = _words(name, kind, paths)
    if name in SOURCES and SOURCES[name].length:
        unknown = sum(int((arrays[key] == text.OOV).sum()) for key in ("x_train", "x_test"))
        source = f"{source.removesuffix(')')}, characters out of vocabulary: {unknown}{')' * source.endswith(')')}"
    main = {key: arrays[key] for key in NPZ_KEYS}
    owners = {key: arrays.get(key) for key in OWNERS}
    return Pool(**main, **owners, name=name, source=source, num_classes=num_classes, task=task)


def describe(name: str, kind: str = "") -> str:
    """Describe in words where the rows of `load(name, kind)` come from; raises as `load` does."""
    return _words(name, *_there(name, kind))


def _there(name: str, kind: str) -> tuple[str, list[Path]]:
    """The kind ('npz', 'official' or 'unpacked') and the paths of the files that are read for `name`."""
    if kind != "npz" and not (kind == "" and has_own(name)):
        choose("data set", name, SOURCES)
        if (found := _find(name)) is not None:
            return found
        raise MissingDataError(f"{name} is not on this machine. {how_to_get(name)}")
    if not has_own(name):
        raise MissingDataError(f"{own_file(name)} is not there. `fedlab data import --help` says how to make one")
    return "npz", [own_file(name)]


def _words(name: str, kind: str, paths: list[Path]) -> str:
    if kind == "npz":
        digest = _read_own(name).digest
        return KNOWN_COPIES.get(digest, f"own file {paths[0].name}, sha256 {digest[:12]}")
    if kind == "unpacked":
        digest = hashlib.sha256("".join(_file_hash(path, "sha256") for path in paths).encode()).hexdigest()
        return f"{name} (unpacked, sha256 {digest[:12]})"
    return f"{name} (official)"


def has_official(name: str) -> bool:
    return name in SOURCES and _find(name) is not None


def _read_own(name: str) -> npz.Own:
    """Read a user's own file; under a published name it must have that data set's labels and form."""
    published = SOURCES.get(name)
    return npz.read_npz(own_file(name), *((published.num_classes, published.length) if published else ()))


def status() -> list[Status]:
    """The state of the data sets on this machine: one row per published data set and per other own file."""
    rows, published = [], {name: _find(name) for name in SOURCES}
    for name, found in published.items():
        if found is None:
            rows.append(_own_status(name) if has_own(name) else Status(name, "missing", "", how_to_get(name)))
            continue
        kind, paths = found
        where = str(paths[0] if len(paths) == 1 else paths[0].parent)
        try:
            if kind == "official":
                _verify(name, paths)
        except (CorruptFileError, InputError) as error:
            rows.append(Status(name, "damaged", where, str(error)))
        else:
            rows.append(Status(name, "ready", f"{where} ({kind})", ""))
    taken = {*EMBEDDED, *(name for name, found in published.items() if found)}
    for name in (file.stem for file in own_files()):
        if name in taken:
            rows.append(_own_status(name)._replace(name=f"npz:{name}"))
        elif name not in SOURCES:
            rows.append(_own_status(name))
    return rows


def _own_status(name: str) -> Status:
    try:
        found = _read_own(name).describe()
    except (CorruptFileError, InputError) as error:
        return Status(name, "damaged", f"{own_file(name)} (own file)", str(error))
    return Status(name, "ready", f"{own_file(name)} (own file: {found})", "")


def fetch(name: str) -> list[Path]:
    """Download the official files of `name` into `$FEDLAB_DATA`, unless they or an .npz exist; return the paths.

    A damaged file is reported, never overwritten or deleted. Raises `MissingDataError` when the download fails.
    """
    import pooch

    choose("data set", name, SOURCES)
    if (found := _find(name)) is not None:
        if found[0] == "official":
            _verify(name, found[1])
        return found[1]
    if has_own(name):
        return [own_file(name)]
    source = SOURCES[name]
    paths = []
    for file in source.files:
        path = data_dir() / file.name
        if path.exists():
            _verify_file(name, file, path)
        else:
            try:
                pooch.retrieve(source.url + file.name, file.checksum, file.name, data_dir())
            except ValueError as error:  # pooch raises it for a wrong checksum
                raise CorruptFileError(f"{source.url}{file.name}: {error}") from error
            except OSError as error:
                raise MissingDataError(
                    f"could not fetch {source.url}{file.name} into {data_dir()}: {error}. {how_to_get(name)}"
                ) from error
        paths.append(path)
    return paths


def how_to_get(name: str) -> str:
    """List every way to get a data set, as text for an error message."""
    source = SOURCES[name]
    files = " ".join(file.name for file in source.files)
    ways = [
        f"run `fedlab data fetch {name}` (about {source.megabytes} MB from {source.url})",
        f"put {files} from there into {data_dir()} (FEDLAB_DATA chooses another folder)",
        f"put your own arrays into {own_file(name)}: {', '.join(NPZ_KEYS)}, and {' and '.join(OWNERS)} for partition "
        "'natural'",
    ]
    if source.length:
        ways[-1] += f"; x and y are ids `[n, {source.length}]` in 0 ... {source.num_classes - 1}, 0 being padding"
    if source.unpacked:
        ways.insert(2, f"or only what is in it: {' '.join(source.unpacked)}")
    if source.package:
        ways.insert(0, f"on Debian or Ubuntu, `apt-get install {source.package}`")
    return "Ways to get it:" + "".join(f"\n  - {way}" for way in ways)


def _find(name: str) -> tuple[str, list[Path]] | None:
    """Find the published files of `name` on this machine: ("official" | "unpacked", paths), or None."""
    source = SOURCES[name]
    files = [file.name for file in source.files]
    candidates = [("official", data_dir(), files)]
    if source.unpacked:
        candidates.append(("unpacked", data_dir(), list(source.unpacked)))
    if source.package_dir:
        candidates.append(("official", Path(source.package_dir), files))
    for kind, folder, names in candidates:
        paths = [folder / each for each in names]
        if all(path.is_file() for path in paths):
            return kind, paths
    return None


def _verify(name: str, paths: list[Path]) -> None:
    for file, path in zip(SOURCES[name].files, paths, strict=True):
        _verify_file(name, file, path)


def _verify_file(name: str, file: File, path: Path) -> None:
    algorithm, expected = file.checksum.split(":")
    found = _file_hash(path, algorithm)
    if found == expected:
        return
    if file.content:
        algorithm, expected = "sha256 of the content", file.content
        found = hashlib.sha256(gunzip(path)).hexdigest()
        if found == expected:
            return
    raise CorruptFileError(
        f"{path} is truncated or altered: {algorithm} is {found}, expected {expected}. Nothing was deleted; move it "
        f"away and run `fedlab data fetch {name}`"
    )


def _file_hash(path: Path, algorithm: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _reading(paths: list[Path], read: Callable[[list[Path]], Arrays]) -> Arrays:
    try:
        return read(paths)
    except FedlabError:
        raise
    except Exception as error:  # a reader may raise anything for a damaged or crafted file
        raise unreadable(paths[0] if len(paths) == 1 else paths[0].parent, error) from error


_TFF = "https://storage.googleapis.com/tff-datasets-public/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))

SOURCES: dict[str, Source] = {
    "fashion_mnist": Source(
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files=(
            File(
                "train-images-idx3-ubyte.gz",
                "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                "md5:25c81989df183df01b3e8a0aad5dffbe",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                "md5:bef4ecab320f06d8554ea6380940ec79",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                "md5:bb300cfdad3c16e7a12a480ee83cd310",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        read=read_idx,
        num_classes=10,
        megabytes=30,
        package="dataset-fashion-mnist",
        package_dir="/usr/share/datasets/fashion-mnist",
    ),
    "cifar10": Source(
        url=_CIFAR,
        files=(File("cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),),
        read=read_cifar(_BATCHES, ("test_batch",), b"labels"),
        num_classes=10,
        megabytes=170,
    ),
    "cifar100": Source(
        url=_CIFAR,
        files=(File("cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),),
        read=read_cifar(("train",), ("test",), b"fine_labels"),
        num_classes=100,
        megabytes=170,
    ),
    "femnist": Source(
        url=_TFF,
        files=(
            File(
                "fed_emnist.tar.bz2",
                "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
            ),
        ),
        read=read_femnist,
        num_classes=62,
        megabytes=170,
        unpacked=("fed_emnist_train.h5", "fed_emnist_test.h5"),
    ),
    "shakespeare": Source(
        url=_TFF,
        files=(File("shakespeare.tar.bz2", "sha256:0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707"),),
        read=read_shakespeare,
        num_classes=text.NUM_IDS,
        megabytes=2,
        unpacked=("shakespeare_train.h5", "shakespeare_test.h5"),
        length=text.LENGTH,
    ),
    "harbox": Source(
        url="https://github.com/xmouyang/FL-Datasets-for-HAR/raw/main/datasets/HARBox/",
        files=(
            File("large_scale_HARBox.zip", "sha256:4fdf91e26f698e2b5e349be2af08fb41a5ccd86e2254b4bd3b81eaf77959d12f"),
        ),
        read=read_harbox,
        num_classes=5,
        megabytes=132,
    ),
}

KNOWN_COPIES = {  # SHA-256 of the arrays of an .npz -> its name
    "902491f3c3e3ab713c864b577b3691b4b303d9f3f2bf6fff0a37eb87494873b3": "cifar10 (jpeg copy)",
}
