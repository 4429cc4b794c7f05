"""Section B: pictures of every mode, depth and turn, whose right content is known."""

import math
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from attacks.cases import Outcome, holds
from fedlab_lite.data import importing
from fedlab_lite.nn.layers import as_float

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


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    for number in range(seed, seed + math.ceil(400 * share)):
        yield holds(f"pictures {number}", partial(pictures, folder, number), may_refuse=True)
