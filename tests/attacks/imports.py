"""Section B: data sets are imported as they are, or with a word, or not at all; right contents are known."""

import gzip
import io
import json
import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from attacks.cases import Outcome, holds, tests
from attacks.store import changed
from fedlab_lite.data import importing, npz
from fedlab_lite.nn.layers import as_float

# --- pictures ---------------------------------------------------------------------------------------------------------

TURNS = {  # EXIF's orientation: how the stored pixels are turned to be looked at
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x.swapaxes(0, 1)[:, ::-1],
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x.swapaxes(0, 1)[::-1],
}
FORMATS = {  # of each: modes that Pillow writes, whether it turns, and by how much a pixel may differ (of 1)
    "PNG": (("1", "L", "LA", "P", "RGB", "RGBA", "I;16"), True, 0),
    "TIFF": (("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B", "F", "CMYK", "I"), True, 0),
    "WEBP": (("L", "RGB", "RGBA"), True, 0),
    "BMP": (("1", "L", "P", "RGB"), False, 0),
    "GIF": (("L", "P", "1"), False, 0),
    "JPEG": (("L", "RGB", "CMYK"), True, 0.06),
}
SUFFIXES = {"PNG": ".png", "TIFF": ".tiff", "WEBP": ".webp", "BMP": ".bmp", "GIF": ".gif", "JPEG": ".jpg"}


class Drawn(NamedTuple):
    """A picture as it is saved, and what must be seen of it: `[height, width, 1 or 3]`, 0 to 1."""

    image: Image.Image
    seen: np.ndarray


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return colour * alpha + 1 - alpha


def drawn(mode: str, size: tuple[int, int], rng: np.random.Generator) -> Drawn:
    """Smooth random pixels of this mode."""
    height, width = size

    def smooth(levels: int) -> np.ndarray:
        down, across = np.mgrid[:height, :width] / max(size)
        a, b, c = rng.uniform(0, 1, 3)
        return np.rint((levels - 1) * np.abs(np.sin(3 * a * down + 3 * b * across + 3 * c))).astype(np.int64)

    grey, alpha = smooth(256).astype(np.uint8), smooth(256).astype(np.uint8)
    colours = np.stack([smooth(256) for _ in range(3)], -1).astype(np.uint8)
    unit = grey[..., None] / 255
    match mode:
        case "1":
            return Drawn(Image.fromarray(grey > 127), (grey > 127)[..., None].astype(float))
        case "L":
            return Drawn(Image.fromarray(grey), unit)
        case "LA":
            image = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)])
            return Drawn(image, on_white(unit, alpha[..., None] / 255))
        case "P":
            places = smooth(5).astype(np.uint8)
            palette = rng.integers(0, 256, (5, 3), dtype=np.uint8)
            image = Image.new("P", (width, height))
            image.putdata(places.ravel().tolist())
            image.putpalette(palette.ravel().tolist())
            return Drawn(image, palette[places] / 255)
        case "RGB":
            return Drawn(Image.fromarray(colours), colours / 255)
        case "RGBA":
            image = Image.fromarray(np.dstack([colours, alpha]))
            return Drawn(image, on_white(colours / 255, alpha[..., None] / 255))
        case "CMYK":
            return Drawn(Image.fromarray(colours).convert("CMYK"), colours / 255)
        case "I;16" | "I;16B":
            deep = smooth(65536)
            pixels = deep.astype("<u2" if mode == "I;16" else ">u2")
            return Drawn(Image.frombytes(mode, (width, height), pixels.tobytes()), deep[..., None] / 65535)
        case "F":
            shares = (smooth(1000) / 999).astype(np.float32)
            return Drawn(Image.fromarray(shares), shares[..., None])
        case "I":
            return Drawn(Image.fromarray(smooth(70000).astype(np.int32)), np.full((height, width, 1), np.nan))
    raise ValueError(mode)


def pictures(folder: Path, seed: int) -> str:
    """A folder of pictures of one format, of one or two modes and any turns; networks see what was drawn."""
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    form = draw.choice([*FORMATS])
    modes, turns, tolerance = FORMATS[form]
    chosen = draw.sample(modes, 1 if draw.random() < 0.7 else min(2, len(modes)))
    size, root, expected = (int(rng.integers(8, 20)), int(rng.integers(8, 20))), folder / f"p{seed}", []
    for k in range(8):
        mode, turn = draw.choice(chosen), draw.randint(1, 8) if turns and draw.random() < 0.5 else 1
        upright = turn < 5
        picture = drawn(mode, size if upright else size[::-1], rng)
        options: dict[str, Any] = {}
        if turn > 1:
            exif = Image.Exif()
            exif[0x0112] = turn
            options["exif"] = exif
        if form == "WEBP":
            options |= {"lossless": True, "exact": True}
        if form == "JPEG":
            options |= {"quality": 100, "subsampling": 0}
        if form == "TIFF":
            options |= {"compression": draw.choice((None, "tiff_lzw", "tiff_adobe_deflate"))}
        label = draw.choice(("cat", "dog")) if k > 1 else ("cat", "dog")[k]
        (root / label).mkdir(parents=True, exist_ok=True)
        picture.image.save(root / label / f"{k}{SUFFIXES[form]}", format=form, **options)
        expected.append((TURNS[turn](picture.seen), label))
    _, pool, said = importing.import_data(root, folder / f"p{seed}.npz")
    got = seen_by_networks(pool)
    for picture, label in expected:
        match = min(
            (np.abs(x - grown(picture, x)).max() if x.shape[:2] == picture.shape[:2] else 9)
            for x, word in got
            if word == label
        )
        assert match <= max(tolerance, 1.5 / 255), (
            f"{form} {chosen}: a picture is seen wrongly, by {match:.3f}; said: {said}"
        )
    return form


def grown(picture: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A grey picture with as many channels, or a colour one."""
    return np.broadcast_to(picture, like.shape) if picture.shape[-1] == 1 else picture


def seen_by_networks(pool: Any) -> list[tuple[np.ndarray, str]]:
    """Each row of a data set as networks see it, with the word of its label."""
    parts = ((pool.x_train, pool.y_train), (pool.x_test, pool.y_test))
    return [
        (np.asarray(as_float(np.asarray(x))), pool.label_words[y])
        for xs, ys in parts
        for x, y in zip(xs, ys, strict=True)
    ]


# --- tables -----------------------------------------------------------------------------------------------------------

WORDS = (
    ("cat", "dog", "cow"), ("a,b", "c;d", "e|f"), ("né", "oui", "ça"), ('say "x"', "y", "'z'"), ("two words", "one", " a"),
    ("01", "1", "2"), ("007", "7", "70"), ("1.0", "1", "2"), ("1", "2", "10"), ("3", "5", "-1"), ("True", "False", "x"),
    ("x\ny", "z", "x"), ("1e3", "1000", "5"), ("0x1", "1x", "1"), ("2024-01-02", "2024-02-01", "x"), ("½", "¼", "1"),
    ("1_000", "1000", "1"), ("+1", "1", "0"), ("1.50", "1.5", "2"), ("inf", "1", "2"), ("Yes", "yes", "no"), ("0", "1", "00"),
)  # fmt: skip
OWNERS = (
    ("Ada", "Bob", "Cyd"),
    ("1", "2", "3"),
    ("01", "1", "10"),
    ("001", "002", "1"),
    ("x y", "z", "é"),
    ("1.5", "2", "3"),
)


def column(rng: np.random.Generator, n: int) -> np.ndarray:
    kind = rng.integers(6)
    if kind == 0:
        return rng.normal(size=n).round(6)
    if kind == 1:
        return rng.integers(-1000, 1000, n)
    if kind == 2:
        return rng.integers(0, 2, n).astype(bool)
    if kind == 3:
        return rng.normal(size=n) * 10.0 ** rng.integers(-6, 7)
    if kind == 4:
        return rng.integers(0, 2**31, n)
    return rng.integers(0, 10, n) / 4


def tables(folder: Path, seed: int) -> None:
    """A random table in a random form: each row keeps its features, its label's word and its owner."""
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    n, features = draw.randint(16, 40), draw.randint(1, 5)
    names = [f"f{k}" for k in range(features)]
    columns: dict[str, Any] = {name: column(rng, n) for name in names}
    words, owners = draw.choice(WORDS), draw.choice(OWNERS)
    label = [words[k % 3] for k in rng.permutation(n)]
    owner = [owners[k % 3] for k in range(n)] if draw.random() < 0.5 else None
    order = [*names, "label", *(["owner"] if owner else [])]
    draw.shuffle(order)
    table = pd.DataFrame(columns | {"label": label} | ({"owner": owner} if owner else {}))[order]
    separator, encoding = (
        draw.choice((",", ",", ";", "\t", "|")),
        draw.choice(("utf-8", "utf-8-sig", "utf-16", "cp1252")),
    )
    suffix = draw.choice((".csv", ".csv", ".CSV", ".tsv", ".csv.gz", ".parquet"))
    decimal = "," if separator == ";" and draw.random() < 0.5 else "."
    file = folder / f"t{seed}{suffix}"
    if suffix == ".parquet":
        table.to_parquet(file)
    else:
        options = {"index": draw.random() < 0.2, "lineterminator": draw.choice(("\n", "\r\n")), "decimal": decimal}
        options |= {"quoting": draw.choice((0, 0, 1, 2)), "sep": separator}
        content = table.to_csv(None, **options).encode(encoding, errors="replace" if encoding == "cp1252" else "strict")
        file.write_bytes(gzip.compress(content) if suffix == ".csv.gz" else content)
    extra = {"owner": "owner"} if owner else {}
    _, pool, said = importing.import_data(file, folder / f"t{seed}.npz", **extra)
    want = Counter(
        (tuple(np.float32(row)), word.encode(encoding, "replace").decode(encoding), who)
        for row, word, who in zip(
            table[[name for name in order if name in names]].to_numpy(float), label, owner or [""] * n, strict=True
        )
    )
    got = rows_of(pool)
    same = Counter({(rounded(row), word.strip(), who): number for (row, word, who), number in got.items()})
    expected = Counter({(rounded(row), word.strip(), who): number for (row, word, who), number in want.items()})
    assert same == expected, (
        f"{file.name} {separator!r} {encoding} {words} {owners}: {[*(same - expected)][:1]} for {[*(expected - same)][:1]}; said {said}"
    )


def rounded(row: tuple) -> tuple:
    return tuple(float(f"{value:.5g}") for value in row)


def rows_of(pool: Any) -> Counter:
    found: Counter = Counter()
    for x, y, owner in ((pool.x_train, pool.y_train, pool.owner_train), (pool.x_test, pool.y_test, pool.owner_test)):
        whose = [""] * len(y) if owner is None else [str(each) for each in owner]
        found.update((tuple(row), pool.label_words[k], who) for row, k, who in zip(x, y, whose, strict=True))
    return found


# --- arrays and LEAF --------------------------------------------------------------------------------------------------

TYPES = ("u1", "i1", "<u2", ">u2", "<i4", ">i4", "<i8", "<u8", "<f2", "<f4", ">f4", "<f8", ">f8", "?")


def arrays(folder: Path, seed: int) -> None:
    """Arrays of other projects in every type: networks see the same numbers."""
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    kind, shape = draw.choice(TYPES), draw.choice(((4,), (6, 5), (6, 5, 1), (6, 5, 3), (3, 6, 5)))
    high = 2 if kind == "?" else 120
    x = rng.integers(0, high, (30, *shape)).astype(kind)
    y = (np.arange(30) % 3).astype(draw.choice(("<i8", ">i2", "u1")))
    style = draw.choice(("keras", "medmnist", "torch"))
    cut = {"train": slice(0, 20), "test": slice(20, 30)}
    names = {"keras": "{kind}_{part}", "medmnist": "{part}_{long}"}
    long = {"x": "images", "y": "labels"}
    if style == "torch":
        content = {"data": x, "targets": y}
    else:
        content = {
            names[style].format(kind=each, part=part, long=long[each]): array[rows]
            for part, rows in cut.items()
            for each, array in (("x", x), ("y", y[:, None] if style == "medmnist" else y))
        }
    np.savez(folder / f"a{seed}.npz", **content)
    _, pool, said = importing.import_data(folder / f"a{seed}.npz", folder / f"b{seed}.npz")
    moved = np.moveaxis(x, 1, -1) if shape == (3, 6, 5) else x
    want = moved.astype(np.float32) / (255 if kind == "u1" else 1)
    want = want[..., None] if want.ndim == 3 else want
    got = np.concatenate([np.asarray(as_float(np.asarray(each))) for each in (pool.x_train, pool.x_test)])

    def key(rows: np.ndarray) -> list:
        return sorted(map(tuple, rows.reshape(len(rows), -1).astype(float).round(4).tolist()))

    assert key(got) == key(want), f"{kind} {shape} {style}; said {said}"


def leaf(folder: Path, seed: int) -> None:
    """LEAF's JSON: each user's rows keep their numbers, labels and owner."""
    rng = np.random.default_rng(seed)
    users = [f"f{k:04}_{k % 7}" for k in rng.permutation(4)]
    data = {
        user: {"x": rng.random((5 + k, 6)).round(6).tolist(), "y": rng.integers(0, 3, 5 + k).tolist()}
        for k, user in enumerate(users)
    }
    data[users[0]]["y"][:3] = [0, 1, 2]
    content = {"users": users, "num_samples": [len(data[user]["y"]) for user in users], "user_data": data}
    (folder / f"l{seed}.json").write_text(json.dumps(content))
    _, pool, _ = importing.import_data(folder / f"l{seed}.json", folder / f"l{seed}.npz")
    want = Counter(
        (rounded(np.float32(x)), str(y), user)
        for user in users
        for x, y in zip(data[user]["x"], data[user]["y"], strict=True)
    )
    got = Counter({(rounded(row), word, who): number for (row, word, who), number in rows_of(pool).items()})
    assert got == want


def no_leaf(folder: Path, seed: int) -> None:
    """JSON that is nearly LEAF's: read as it is, or refused."""
    rng = random.Random(seed)
    data = {user: {"x": [[0.5, 1.0]] * 4, "y": [0, 1, 0, 1]} for user in ("a", "b")}
    content = changed({"users": ["a", "b"], "num_samples": [4, 4], "user_data": data}, rng)
    (folder / f"n{seed}.json").write_text(json.dumps(content))
    importing.import_data(folder / f"n{seed}.json", folder / f"n{seed}.npz")


def bytes_as_names(folder: Path) -> None:
    """Folders whose names are no text in UTF-8."""
    root = folder / "bytes"
    for label in (b"caf\xe9", b"dog"):
        where = os.fsencode(root) + b"/" + label
        os.makedirs(where)
        for k in range(4):
            Image.new("L", (4, 4), 40 * k).save(os.fsdecode(where) + f"/{k}.png")
    _, pool, _ = importing.import_data(root, folder / "bytes.npz")
    for word in pool.label_words:
        word.encode()


# --- what cannot be imported, or is too large -------------------------------------------------------------------------


def bomb(folder: Path, name: str) -> None:
    """A small file of very many bytes is refused by its headers, before they are read."""
    import resource
    import zipfile

    file = folder / name
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if name.endswith(".npz"):
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (100000, 1000, 1000), }"
        with (
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("x_train.npy", "w", force_zip64=True) as inside,
        ):
            inside.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(1 << 20))
    elif name.endswith(".gz"):
        block = gzip.compress(b"1,2,3\n" * 100_000)
        file.write_bytes(gzip.compress(b"a,b,label\n") + block * 20_000)
    else:
        for label in ("cat", "dog"):
            (file / label).mkdir(parents=True)
            row = b"\x00" * 40
            content = io.BytesIO()
            Image.new("L", (1, 1)).save(content, "PNG")
            raw = bytearray(content.getvalue())
            raw[16:24] = (200_000).to_bytes(4, "big") * 2  # width and height of the header
            import zlib

            raw[29:33] = zlib.crc32(bytes(raw[12:29])).to_bytes(4, "big")
            (file / label / "a.png").write_bytes(bytes(raw) + row)
    try:
        importing.import_data(file, folder / "bomb.npz")
    finally:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 1_500_000, f"{grown / 1e6:.1f} GB were taken"


TESTS = ("tests/data/test_import.py", "tests/data/test_npz.py")


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    for number in range(seed, seed + math.ceil(400 * share)):
        yield holds(f"pictures {number}", lambda n=number: pictures(folder, n), may_refuse=True)
    for number in range(seed, seed + math.ceil(500 * share)):
        yield holds(f"table {number}", lambda n=number: tables(folder, n), may_refuse=True)
    for number in range(seed, seed + math.ceil(200 * share)):
        yield holds(f"arrays {number}", lambda n=number: arrays(folder, n), may_refuse=True)
    for number in range(seed, seed + math.ceil(20 * share)):
        yield holds(f"LEAF {number}", lambda n=number: leaf(folder, n), may_refuse=True)
    for number in range(seed, seed + math.ceil(100 * share)):
        yield holds(f"nearly LEAF {number}", lambda n=number: no_leaf(folder, n), may_refuse=True)
    yield holds("names that are no text", lambda: bytes_as_names(folder), may_refuse=True)
    if share == 1:
        for name in ("bomb.npz", "bomb.csv.gz", "bomb"):
            yield holds(name, lambda name=name: bomb(folder, name), may_refuse=True)
        yield from tests(*TESTS)
