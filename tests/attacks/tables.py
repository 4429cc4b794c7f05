"""Section B, second part: tables, arrays and LEAF's JSON in random forms, and what is too large or no text."""

import gzip
import io
import json
import math
import os
import random
import resource
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from attacks.cases import Outcome, holds, units
from attacks.strange import changed
from fedlab_lite.data import importing
from fedlab_lite.nn.layers import as_float

WORDS = (
    ("cat", "dog", "cow"), ("a,b", "c;d", "e|f"), ("né", "oui", "ça"), ('say "x"', "y", "'z'"), ("two", "one", " a"),
    ("01", "1", "2"), ("007", "7", "70"), ("1.0", "1", "2"), ("1", "2", "10"), ("3", "5", "-1"), ("True", "False", "x"),
    ("x\ny", "z", "x"), ("1e3", "1000", "5"), ("0x1", "1x", "1"), ("2024-01-02", "2024-02-01", "x"), ("½", "¼", "1"),
    ("1_000", "1000", "1"), ("+1", "1", "0"), ("1.50", "1.5", "2"), ("inf", "1", "2"), ("Yes", "yes", "no"),
    ("0", "1", "00"),
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
    told = [word.encode(encoding, "replace").decode(encoding).strip() for word in label]
    x = table[[name for name in order if name in names]].to_numpy(float)
    want = Counter(zip(map(rounded, np.float32(x)), told, owner or [""] * n, strict=True))
    got = rows_of(pool)
    about = f"{file.name} {separator!r} {encoding} {words} {owners}"
    assert got == want, f"{about}: {[*(got - want)][:1]} for {[*(want - got)][:1]}; said {said}"


def rounded(row: Any) -> tuple:
    return tuple(float(f"{value:.5g}") for value in row)


def rows_of(pool: Any) -> Counter:
    """How often each row is there: its features, its label's word, its owner."""
    found: Counter = Counter()
    for x, y, owner in ((pool.x_train, pool.y_train, pool.owner_train), (pool.x_test, pool.y_test, pool.owner_test)):
        whose = [""] * len(y) if owner is None else [str(each) for each in owner]
        found.update((rounded(row), pool.label_words[k].strip(), who) for row, k, who in zip(x, y, whose, strict=True))
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
    assert rows_of(pool) == want


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
    for label in (b"\xe9t", b"dog"):
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
            raw[29:33] = zlib.crc32(bytes(raw[12:29])).to_bytes(4, "big")
            (file / label / "a.png").write_bytes(bytes(raw) + row)
    try:
        importing.import_data(file, folder / "bomb.npz")
    finally:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 1_500_000, f"{grown / 1e6:.1f} GB were taken"


TESTS = ("tests/data/test_import.py", "tests/data/test_npz.py")
DRAWS = {"table": (500, tables), "arrays": (200, arrays), "LEAF": (20, leaf), "nearly LEAF": (100, no_leaf)}


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    for what, (number, attempt) in DRAWS.items():
        for k in range(seed, seed + math.ceil(number * share)):
            yield holds(f"{what} {k}", partial(attempt, folder, k), may_refuse=True)
    yield holds("names that are no text", partial(bytes_as_names, folder), may_refuse=True)
    if share == 1:
        for name in ("bomb.npz", "bomb.csv.gz", "bomb"):
            yield holds(name, partial(bomb, folder, name), may_refuse=True)
        yield from units(*TESTS)
