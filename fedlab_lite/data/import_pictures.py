"""Import of a folder of pictures, with one folder per class: every conversion is exact, or refused, and said."""

import io
import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlab_lite.data.formats import Arrays
from fedlab_lite.data.import_arrays import NAMES_OF_PARTS
from fedlab_lite.util import InputError
from fedlab_lite.util.memory import check_memory

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")  # Pillow reads others with programs of the system
NO_PICTURES = {"thumbs.db", "desktop.ini"}  # that systems add to folders; hidden files are passed over too
ORIENTATION = 0x0112  # EXIF: how to turn the picture


class Picture(NamedTuple):
    """A file, and what its header says."""

    path: Path
    label: str
    part: str  # 'train', 'test', 'val' or ''
    shape: tuple[int, int]  # height and width, turned as EXIF says
    kind: str  # 'uint8', 'uint16', 'int32' or 'float32'
    grey: bool


def read_pictures(source: Path, size: tuple[int, int] | None, ranged: bool) -> tuple[Arrays, list[str]]:
    """The columns `x`, `label` and perhaps `test` of a folder of pictures, and what was done to make them.

    Args:
      size: height and width, to which all are resized; None: they have one size.
      ranged: whether the range of the pixels was stated, which pictures of 32 bits need.
    """
    files, said = _found(source)
    counts: Counter[str] = Counter()
    pictures = [_header(*each, counts) for each in files]
    shapes = {picture.shape for picture in pictures}
    if size is None and len(shapes) > 1:
        few = ", ".join(f"{height}x{width}" for height, width in sorted(shapes)[:4])
        raise InputError(f"the images have {len(shapes)} sizes ({few}, ...); set one, for example --size 32")
    grey = all(picture.grey for picture in pictures)
    kinds = {picture.kind for picture in pictures}
    if kinds == {"uint8", "uint16"}:
        kinds = {"uint16"}
        said.append("pictures of 8 and of 16 bits: all are kept as 16 bits, white is 65535")
    if len(kinds) > 1 or (kinds == {"uint16"} and not grey):
        some = [next(each.path.name for each in pictures if each.kind == kind) for kind in sorted(kinds)]
        raise InputError(
            f"the pictures are of types {', '.join(sorted(kinds))} ({', '.join(some)}); convert them to one"
        )
    kind, (height, width) = kinds.pop(), size or shapes.pop()
    if not grey and any(picture.grey for picture in pictures):
        said.append("grey pictures were turned into colour ones")
    bytes_ = len(pictures) * height * width * (1 if grey else 3) * np.dtype(kind).itemsize
    check_memory(f"{len(pictures):,} pictures of {height}x{width}", 3 * bytes_, "set a smaller --size")
    x = np.empty((len(pictures), height, width, 1 if grey else 3), kind)
    for row, picture in zip(x, pictures, strict=True):
        row[:] = _pixels(picture, size, np.dtype(kind), grey, counts)
    if size is not None and shapes != {size}:
        counts[f"resized to {height}x{width}"] = sum(picture.shape != size for picture in pictures)
    said += [f"{count:,} of {len(pictures):,} pictures: {what}" for what, count in counts.items()]
    columns = {"x": x, "label": np.array([picture.label for picture in pictures])}
    if kind == "uint16" and not ranged:
        columns["x_range"] = np.array([0, 65535])
        said.append("16 bits: networks see black (0) as 0 and white (65535) as 1; --range states another range")
    elif kind in ("int32", "float32") and not ranged:
        low, high = x.min(), x.max()
        if kind == "int32" or low < 0 or high > 1:
            words = "whose black and white are not known; state them, such as --range"
            raise InputError(f"the pictures have {kind} pixels from {low:g} to {high:g}, {words} {low:g} {high:g}")
        columns["x_range"] = np.array([0, 1])
        said.append(f"float pixels from {low:g} to {high:g} are taken as they are: 0 is black and 1 white")
    parts = [picture.part for picture in pictures]
    if any(parts):
        columns["test"] = np.array([part == "test" for part in parts])
    return columns, said


def _found(source: Path) -> tuple[list[tuple[Path, str, str]], list[str]]:
    """The files of pictures with their label and part, sorted, and what was left out."""
    said, folders = [], sorted(each for each in source.iterdir() if each.is_dir() and not each.name.startswith("."))
    parts: dict[str, Path] = {}
    named = [each for each in folders if each.name.casefold() in NAMES_OF_PARTS and not each.is_symlink()]
    for each in named:
        part = NAMES_OF_PARTS[each.name.casefold()]
        if part in parts:
            raise InputError(f"{source} has {parts[part].name} and {each.name} for one part; keep one of them")
        parts[part] = each
    if "train" not in parts and len(named) != len(folders):
        parts = {}  # 'test' and the like are names of classes
    elif len(parts) == 1:
        said.append(f"{named[0].name} is the only part there is, so it is divided")
        source, parts = named[0], {}
    elif parts and "train" not in parts:
        raise InputError(f"{source} has only {', '.join(each.name for each in named)}; call one of them train")
    if parts and (others := [each.name for each in folders if each not in named]):
        raise InputError(
            f"{source} has {named[0].name} and also {others[0]}; put classes into the parts, or rename one"
        )
    found: list[tuple[Path, str, str]] = []
    links = deep = beside = 0
    for part, root in parts.items() if parts else [("", source)]:
        for where, inside, names in os.walk(root):
            links += sum(os.path.islink(os.path.join(where, name)) for name in (*inside, *names))
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            for path in (Path(where, name) for name in sorted(names)):
                if path.name.startswith(".") or path.name.casefold() in NO_PICTURES or path.is_symlink():
                    continue
                if not path.is_file():
                    raise InputError(f"{path} is not a file, but a pipe, a socket or similar; remove it")
                steps = path.relative_to(root).parts
                beside, deep = beside + (len(steps) == 1), deep + (len(steps) > 2)
                if len(steps) > 1:
                    found.append((path, steps[0], part))
    if links:
        said.append(f"{links:,} links were not followed; copy what they point to, if it belongs here")
    if beside:
        said.append(f"{beside:,} files are in no class's folder and were left out")
    if deep:
        said.append(f"{deep:,} pictures in folders within a class's folder belong to this class")
    if not found:
        hint = "".join(f" ({each})" for each in said)
        raise InputError(f"{source} has no images; put the images of each class into a folder with its name{hint}")
    if "val" in parts and "test" in parts:
        said.append(f"the pictures of {parts['val'].name} join those for training")
    elif "val" in parts:
        said.append(f"the pictures of {parts['val'].name} are for testing")
        found = [(path, label, "test" if part == "val" else part) for path, label, part in found]
    return sorted(found, key=lambda each: (each[2] == "test", each[1], each[0])), said


def _open(path: Path) -> Any:
    from PIL import Image

    try:
        # From memory, because Pillow mixes up the rows of a turned TIFF that it maps.
        return Image.open(io.BytesIO(path.read_bytes()), formats=FORMATS)
    except Exception as error:  # Pillow raises many kinds of error for what is no image
        hint = f"; pictures are {', '.join(FORMATS)}"
        raise InputError(f"{path} cannot be read as an image: {error}{hint}") from error


def _header(path: Path, label: str, part: str, counts: Counter[str]) -> Picture:
    """What the header of a picture says, counted where it will be converted."""
    with _open(path) as image:
        turn, (width, height) = image.getexif().get(ORIENTATION, 1), image.size
        kind = {"I": "int32", "F": "float32"}.get(image.mode, "uint16" if image.mode.startswith("I;") else "uint8")
        if kind != "uint8" and image.has_transparency_data:
            raise InputError(
                f"{path} has {kind} pixels and is transparent; convert it to 8 bits, or remove transparency"
            )
        on_its_side = turn in range(5, 9) and image.format != "TIFF"  # Pillow turns TIFF itself, also the size
        if turn in range(2, 9):
            counts["turned, as EXIF says"] += 1
        if getattr(image, "n_frames", 1) > 1:
            counts["of several frames or pages, the first was taken"] += 1
        if any(";16" in str(tile) for tile in image.tile) and kind == "uint8":
            counts["colours of 16 bits, of which the upper 8 were taken"] += 1
        grey = image.mode in ("1", "L", "LA", "La") or kind != "uint8"
        return Picture(path, label, part, (width, height) if on_its_side else (height, width), kind, grey)


def _pixels(picture: Picture, size: tuple[int, int] | None, kind: np.dtype, grey: bool, counts: Counter) -> np.ndarray:
    """The pixels `[height, width, 1 or 3]` of a picture: turned, before white where it is transparent, and resized."""
    from PIL import Image, ImageOps

    with _open(picture.path) as image:
        try:
            image.load()  # which turns TIFF
            image = ImageOps.exif_transpose(image)
            if picture.kind == "uint8":
                if image.has_transparency_data:
                    image = image.convert("RGBA")
                    if np.asarray(image)[..., 3].min() < 255:
                        counts["transparent, put before white"] += 1
                    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
                image = image.convert("L" if grey else "RGB")
            elif size is not None:
                image = Image.fromarray(np.asarray(image).astype(np.float32))
            low, high = np.min(np.asarray(image)), np.max(np.asarray(image))
            image = image if size is None else image.resize(size[::-1])
        except Exception as error:  # a damaged file
            raise InputError(f"{picture.path} cannot be read as an image: {error}") from error
    pixels = np.asarray(image)
    if picture.kind != "uint8":
        pixels = pixels.clip(low, high) if kind.kind == "f" else np.rint(pixels.clip(low, high))
    elif kind == np.uint16:
        pixels = pixels.astype(np.uint16) * 257  # white stays white
    return pixels[..., None] if grey else pixels
