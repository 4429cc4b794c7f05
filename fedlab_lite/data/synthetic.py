"""Embedded images: generated from a seed in a few seconds, without a download, and cached in `$FEDLAB_CACHE/embedded`.

`glyphs` replaces FEMNIST (28x28x1, 62 classes, naturally divided by writer), `digits` Fashion-MNIST (28x28x1, 10
classes, pooled), `textures` CIFAR-10/100 (32x32x3, pooled). Embedded text is made in `roles`, motion in `motion`. They
need not look like the real data, but should be of similar difficulty. A central network is accurate and one client
alone is clearly less accurate. Clients differ in their classes and in how they draw them.
"""

import contextlib
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from fedlab_lite.data.formats import Arrays
from fedlab_lite.data.pool import Pool
from fedlab_lite.util import InputError, OutputError, cache_dir, sha256_of_arrays, write_atomic
from fedlab_lite.util.memory import check_memory

VERSION = 2  # increase it whenever the samples change, so that no old cached file is used for new data
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TYPEFACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10"),
)
_CELL = 48  # pixels: height and width of a rendered glyph
_CHUNK = 64  # samples processed at a time, so that they stay in the processor's cache


def cached(
    name: str, build: Callable, num_classes: int, size: int, *, task: str = "classification", **counts: int
) -> Pool:
    """Return the data set that `build` makes of `counts`, read from or stored in `$FEDLAB_CACHE/embedded`.

    Args:
      size: of its rows, about, in bytes.

    Raises `InputError` for a count below one (the `seed` may be zero), and for more rows than the memory can hold.
    """
    for what, count in counts.items():
        if what != "seed" and count < 1:
            raise InputError(f"{name}: {what} is {count}; there must be at least one")
    check_memory(f"embedded {name}", 2 * size, "use fewer rows or clients")
    order = "-".join(f"{what}{count}" for what, count in counts.items())
    path = cache_dir() / "embedded" / f"{name.removesuffix('100')}-v{VERSION}-{order}.npz"
    about = {"name": name, "source": f"embedded {name}", "num_classes": num_classes, "task": task}
    # a damaged or altered file is made anew
    with contextlib.suppress(Exception), open(path, "rb") as file, np.load(file) as content:
        arrays = dict(content)
        if arrays.pop("sha256").item() == sha256_of_arrays(arrays):
            return Pool(**arrays, **about)
    arrays = build(*counts.values())
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, sha256=sha256_of_arrays(arrays))
    with contextlib.suppress(OutputError):  # without the cache the next call is only slower
        write_atomic(path, buffer.getbuffer())
    return Pool(**arrays, **about)


# --- glyphs ---------------------------------------------------------------------------------------------------------


def glyphs(num_writers: int, *, seed: int = 0) -> Pool:
    """Characters 0-9 A-Z a-z, uint8 `[n, 28, 28, 1]`, by `num_writers` writers with different sample counts.

    Each writer has a typeface (and sometimes uses another), a slant, weight, size and rotation. A writer also has a
    hand (a smooth warp, and a further one per character), an amount of noise and favourite characters. The numbers of
    samples per writer follow FeDEQ's Table I: mean 194 and standard deviation 73 in training, about a tenth as many in
    test. `owner_train` and `owner_test` number the writers.
    """
    return cached("glyphs", _glyphs, len(CHARACTERS), 216 * 28**2 * num_writers, writers=num_writers, seed=seed)


def _glyphs(num_writers: int, seed: int) -> Arrays:
    rng = np.random.default_rng([VERSION, 62, seed])
    sizes = _diligence(num_writers, rng)
    tests = np.maximum(1, np.round(0.1036 * sizes)).astype(int)
    prior = np.where(np.arange(len(CHARACTERS)) < 10, 2.0, 1.0)
    favourites = rng.dirichlet(2.0 * prior, num_writers)
    owner = np.repeat(np.arange(num_writers, dtype=np.int32), sizes)
    y = np.concatenate([rng.choice(len(CHARACTERS), n, p=p) for n, p in zip(sizes, favourites, strict=True)])
    y = y.astype(np.int32)
    is_test = np.concatenate([np.arange(n) >= n - t for n, t in zip(sizes, tests, strict=True)])
    x = _write(owner, y, num_writers, rng)
    parts = {"train": ~is_test, "test": is_test}
    return {
        f"{kind}_{part}": array[rows]
        for part, rows in parts.items()
        for kind, array in (("x", x), ("y", y), ("owner", owner))
    }


def digits(train_size: int, test_size: int, *, seed: int = 0) -> Pool:
    """The ten digits of `glyphs` by 50 writers, without owners, all equally often (to within one)."""
    size = 28**2 * (train_size + test_size)
    return cached("digits", _digits, 10, size, train=train_size, test=test_size, seed=seed)


def _digits(train_size: int, test_size: int, seed: int) -> Arrays:
    rng = np.random.default_rng([VERSION, 10, seed])
    y = np.concatenate([rng.permutation(np.arange(size, dtype=np.int32) % 10) for size in (train_size, test_size)])
    x = _write(rng.integers(50, size=len(y), dtype=np.int32), y, 50, rng)
    train, test = slice(None, train_size), slice(train_size, None)
    return {"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y[test]}


def _diligence(num_writers: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the number of samples per writer, training and test: skewed, with the moments of FeDEQ's Table I."""
    drawn = rng.gamma(7.0, size=num_writers)
    spread = drawn.std() if num_writers > 1 else 1.0
    return np.maximum(30, np.round(216.4 + 81.4 * (drawn - drawn.mean()) / spread)).astype(int)


def _write(owner: np.ndarray, y: np.ndarray, num_writers: int, rng: np.random.Generator) -> np.ndarray:
    outlines = _outlines().reshape(-1)
    face = rng.integers(len(TYPEFACES), size=num_writers)

    def style(mean: float, deviation: float) -> np.ndarray:
        return (mean + deviation * rng.standard_normal(num_writers)).astype(np.float32)

    slant, turn = style(0, 0.12), style(0, 0.06)
    wide, high = np.exp(style(0.0, 0.08)), np.exp(style(0.0, 0.08))
    thin, ink, noise = style(0.36, 0.07).clip(0.2, 0.5), style(215, 20), np.exp(style(3.3, 0.4))
    hand = rng.standard_normal((num_writers, 2, 4, 4), np.float32)
    letters = rng.standard_normal((num_writers, len(CHARACTERS), 2, 4, 4), np.float32)
    spread = _upsampling(28, 4)
    grid = np.arange(28, dtype=np.float32) - 13.5
    x = np.empty((len(y), 28, 28, 1), np.uint8)
    for start in range(0, len(y), _CHUNK):
        rows = slice(start, start + _CHUNK)
        who, what = owner[rows], y[rows]
        n = len(who)

        def jitter(deviation: float, n=n) -> np.ndarray:
            return deviation * rng.standard_normal((n, 1, 1), np.float32)

        warp = 0.4 * hand[who] + 0.2 * letters[who, what] + 0.6 * rng.standard_normal((n, 2, 4, 4), np.float32)
        warp = spread @ warp @ spread.T
        across, down = grid + jitter(0.7) - warp[:, 0], grid[:, None] + jitter(0.7) - warp[:, 1]
        angle = turn[who, None, None] + jitter(0.05)
        cos, sin = np.cos(angle), np.sin(angle)
        column = (across * cos + down * sin) / (wide[who, None, None] * np.exp(jitter(0.05)))
        row = (down * cos - across * sin) / (high[who, None, None] * np.exp(jitter(0.05)))
        column += (slant[who, None, None] + jitter(0.05)) * row
        hers = np.where(rng.random(n) < 0.6, face[who], rng.integers(len(TYPEFACES), size=n))
        cell = (hers * len(CHARACTERS) + what) * _CELL**2
        value = _sample(outlines, cell, row * 1.27 + _CELL / 2, column * 1.27 + _CELL / 2)
        edge = thin[who, None, None] + jitter(0.03)
        value = ((value - edge) * 4 + 0.5).clip(0, 1) * (ink[who, None, None] + jitter(10))
        value += noise[who, None, None] * rng.standard_normal(value.shape, np.float32)
        x[rows, ..., 0] = value.clip(0, 255)
    return x


def _upsampling(size: int, knots: int) -> np.ndarray:
    """The matrix `[size, knots]` of linear interpolation from values at `knots` equally spaced points."""
    place = np.linspace(0, knots - 1, size, dtype=np.float32)[:, None]
    return (1 - abs(place - np.arange(knots, dtype=np.float32))).clip(0)


def _sample(images: np.ndarray, first: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Interpolate bilinearly in flattened square images of side `_CELL`, each starting at index `first [n]`."""
    row, column = row.clip(0, _CELL - 1.001), column.clip(0, _CELL - 1.001)
    top, left = row.astype(np.int32), column.astype(np.int32)
    below, right = row - top, column - left
    at = first[:, None, None].astype(np.int32) + top * _CELL + left
    upper = images[at] * (1 - right) + images[at + 1] * right
    lower = images[at + _CELL] * (1 - right) + images[at + _CELL + 1] * right
    return upper * (1 - below) + lower * below


@cache
def _outlines() -> np.ndarray:
    """Render every character in every typeface, slightly blurred: `[faces, 62, 48, 48]` in [0, 1], on one base line."""
    import matplotlib
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import get_font
    from matplotlib.ft2font import LoadFlags
    from matplotlib.path import Path as Outline
    from matplotlib.transforms import Affine2D

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    cells = np.zeros((len(TYPEFACES), len(CHARACTERS), _CELL, _CELL), np.float32)
    for face, name in enumerate(TYPEFACES):
        font = get_font(fonts / f"{name}.ttf")
        font.set_size(36, 72)
        outlines = {}
        for character in CHARACTERS:
            font.load_char(ord(character), flags=LoadFlags.NO_HINTING)
            outlines[character] = Outline(*font.get_path())
        capital = outlines["H"].get_extents().height
        canvas = RendererAgg(_CELL * len(CHARACTERS), _CELL, 72)
        context = canvas.new_gc()
        for k, character in enumerate(CHARACTERS):
            box = outlines[character].get_extents()
            place = Affine2D().translate(-(box.x0 + box.x1) / 2, -capital / 2).scale(22 / capital)
            place = place.translate((k + 0.5) * _CELL, _CELL / 2)
            canvas.draw_path(context, outlines[character], place, (0, 0, 0))
        ink = np.asarray(canvas.buffer_rgba())[..., 3].astype(np.float32) / 255
        cells[face] = ink.reshape(_CELL, len(CHARACTERS), _CELL).swapaxes(0, 1)
    for _ in range(3):
        for axis in (2, 3):
            cells = (np.roll(cells, 1, axis) + 2 * cells + np.roll(cells, -1, axis)) / 4
    return cells


# --- textures -------------------------------------------------------------------------------------------------------


def textures(num_classes: int, train_size: int, test_size: int, *, seed: int = 0) -> Pool:
    """Coloured objects before a background, uint8 `[n, 32, 32, 3]`, all classes equally often (to within one).

    A class consists of two families. A family is one of 20 pairs of outline (a disc with 0, 2, ... 5 lobes) and surface
    (stripes, checks, rings, zigzag). With 100 classes it also has one of ten hues. Every outline and every surface
    occurs in several classes, so neither alone determines the class. Position, size, rotation, light, background and
    noise vary freely. Classes do not depend on `seed`; samples do.
    """
    if num_classes not in (10, 100):
        raise InputError(f"textures come in 10 or 100 classes, not {num_classes}")
    counts = {"classes": num_classes, "train": train_size, "test": test_size, "seed": seed}
    size = 3 * 32**2 * (train_size + test_size)
    return cached("textures" if num_classes == 10 else "textures100", _textures, num_classes, size, **counts)


def _textures(num_classes: int, train_size: int, test_size: int, seed: int) -> Arrays:
    arrays = {}
    for part, size in enumerate((train_size, test_size)):
        rng = np.random.default_rng([VERSION, num_classes, seed, part])
        y = rng.permutation(np.arange(size, dtype=np.int32) % num_classes)
        # Each family belongs to one class; `second` pairs families that share neither outline nor surface.
        second = num_classes + (y + 3) % num_classes
        family = np.where(rng.random(size) < 0.5, y, second)
        x = np.empty((size, 32, 32, 3), np.uint8)
        for k in range(2 * num_classes):
            rows = np.flatnonzero(family == k)
            for start in range(0, len(rows), _CHUNK):
                chunk = rows[start : start + _CHUNK]
                x[chunk] = _paint(k, 0.25 if num_classes == 10 else 0.025, len(chunk), rng)
        kind = ("train", "test")[part]
        arrays |= {f"x_{kind}": x, f"y_{kind}": y}
    return arrays


def _paint(family: int, hues: float, n: int, rng: np.random.Generator) -> np.ndarray:
    def uniform(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, (n, 1, 1, 1)).astype(np.float32)

    lobes, surface = (0, 2, 3, 4, 5)[family % 5], family % 4
    grid = np.linspace(-1, 1, 32, dtype=np.float32)
    z = (grid + 1j * grid[:, None]).astype(np.complex64)[None, :, :, None]  # the plane; x is real, y imaginary
    own = (z - uniform(-0.22, 0.22) - 1j * uniform(-0.22, 0.22)) * np.exp(1j * uniform(-0.4, 0.4))
    distance = abs(own) + 1e-6
    direction, waves = own / distance, np.ones_like(own)
    for _ in range(lobes):
        waves = waves * direction
    outline = uniform(0.55, 0.8) * (1 + uniform(0.3, 0.5) * waves.real) if lobes else uniform(0.5, 0.85)
    inside = ((outline - distance) * 8 + 0.5).clip(0, 1)
    turned = own * uniform(9, 14)
    phase = uniform(0, 6.283)
    if surface == 0:
        pattern = np.sin(turned.real + phase)
    elif surface == 1:
        pattern = 1.5 * np.sin(turned.real + phase) * np.sin(turned.imag)
    elif surface == 2:
        pattern = np.sin(abs(turned) + phase)
    else:
        pattern = np.sin(turned.real + 2 * np.sin(0.7 * turned.imag + phase))
    backdrop = np.sin((z * np.exp(1j * uniform(0, 6.283)) * uniform(2, 16)).real + uniform(0, 6.283))
    hue = family // 20 / 10 + hues * rng.standard_normal((n, 1, 1, 1), np.float32)
    thing = _colour(hue, uniform(30, 70)) + uniform(30, 60) * pattern
    behind = _colour(uniform(0, 1), uniform(0, 50)) + uniform(0, 15) * backdrop
    image = behind + inside * (thing - behind) + uniform(-30, 30) + uniform(-30, 30) * grid[:, None]
    image += uniform(5, 18) * rng.standard_normal(image.shape, np.float32)
    return image.clip(0, 255)


def _colour(hue: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return 128 + strength * np.cos(6.283 * (hue + np.array([0, 1 / 3, 2 / 3], np.float32)))
