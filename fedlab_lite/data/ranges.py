"""The range of the rows: what networks see of a file's numbers, and what to do where that would not train.

A file's `x_range` holds two values: those that networks see as 0 and as 1. Of pixels they are one pair, such as 0 and
65535. Of a table whose columns are standardised, they are a row of means, and the row of the means plus one standard
deviation. Without it, networks divide uint8 by 255 and take all other numbers as they are.

Rows of uint16 are pixels of more than 8 bits, which networks divide by 65535. Only images with an `x_range` become such
rows; other whole numbers of 16 bits are int32.
"""

from collections.abc import Sequence

import numpy as np

from fedlab_lite.util import InputError

PIXELS = (0.0, 255.0)
WHITE = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}  # of rows that networks take for pixels
LARGE = 30  # networks start with weights for inputs of about 1; numbers beyond this stop them from learning
FAR = 100  # beyond it nothing is learnt, so training warns as well
UNEQUAL = 100  # of the largest and the smallest column
SHOWN = 5  # columns that a message names


def wrong_range(x_range: np.ndarray, parts: Sequence[np.ndarray]) -> list[str]:
    """List what is wrong with the `x_range` of the rows of `parts`."""
    if x_range.dtype.kind not in "fiu" or len(np.atleast_1d(x_range)) != 2 or not np.isfinite(x_range).all():
        return [f"x_range is {x_range.dtype} {x_range.shape}; save two values: what networks see as 0, and as 1"]
    if not (x_range[1] > x_range[0]).all():
        return ["x_range must rise: first what networks see as 0, then what they see as 1"]
    if x_range.ndim == 2 and any(x.shape[1:] != x_range.shape[1:] for x in parts):
        return [f"x_range has {x_range.shape[1]} columns, but a row has shape {parts[0].shape[1:]}; save one pair each"]
    if x_range.ndim > 2:
        return [f"x_range has shape {x_range.shape}; save one pair, or a pair for each column, `[2, columns]`"]
    low, high = min(x.min() for x in parts), max(x.max() for x in parts)
    if x_range.ndim == 1 and not x_range[0] <= low <= high <= x_range[1]:
        return [f"x runs from {low:g} to {high:g}, beyond its x_range {x_range[0]:g} to {x_range[1]:g}; correct one"]
    return []


def scaled(parts: Sequence[np.ndarray], x_range: np.ndarray) -> list[np.ndarray]:
    """The rows as networks take them: uint8 if 8 bits hold every number exactly, else float32, 0 ... 1.

    So the same picture gives the same rows, whether it was saved as uint8, as uint16 or as floats. Images that need
    more than 8 bits become uint16, to 1/65535 of their range.

    Example:
      >>> [scaled([np.array([[0, 1]]) * top], np.array([0, top]))[0].tolist() for top in (255, 65535, 1.0)]
      [[[0, 255]], [[0, 255]], [[0, 255]]]
      >>> [scaled([np.array(x)], np.array([0, 4096]))[0].dtype.name for x in ([[0, 1, 4096]], [[[0, 1, 4096]]])]
      ['float32', 'uint16']
    """
    low, high = np.asarray(x_range, float)
    if low.ndim == 0:
        levels = [(x - low) * (255 / (high - low)) for x in parts]
        if all(np.abs(level - np.rint(level)).max() < 1e-3 for level in levels):
            return [np.rint(level).astype(np.uint8) for level in levels]
        if parts[0].ndim > 2:
            return [np.rint(257 * level).astype(np.uint16) for level in levels]
    return [((x - low) / (high - low)).astype(np.float32) for x in parts]


def like_training(x: np.ndarray, shape: tuple[int, ...], x_range: Sequence, dtype: str) -> np.ndarray:
    """New rows `x [n, *shape]`, scaled as training rows of this type were; grey images may lack the channel axis.

    Raises: `InputError` for rows of another shape, for pixels beyond the range, and where training had 8 bits and a
      pixel has more.

    >>> like_training(np.array([[0, 65535]]), (2,), (0, 65535), "uint8").tolist()
    [[0, 255]]
    """
    x = x[..., None] if shape[-1] == 1 and x.shape[1:] == shape[:-1] else x
    if x.ndim == 0 or x.shape[1:] != shape or len(x) == 0:
        raise InputError(f"x has shape {x.shape}, but a row has shape {shape}: pass one or more, `[n, ...]`")
    if wrong := wrong_range(np.array(x_range), (x,)):
        raise InputError(wrong[0])
    (rows,) = scaled((x,), np.array(x_range))
    if rows.dtype != dtype and dtype == "uint8":
        raise InputError("x has pixels between those of 8 bits, but the rows in training had 8 bits; round them first")
    if rows.dtype == dtype:
        return rows
    return rows.astype(np.uint16) * 257 if dtype == "uint16" else rows.astype(np.float32) / 255


def standard_range(x: np.ndarray) -> np.ndarray:
    """The `x_range` `[2, columns]` with which the columns of `x [n, columns]` have mean 0 and deviation 1."""
    mean, deviation = x.mean(0, dtype=float), x.std(0, dtype=float)
    return np.stack([mean, mean + np.where(deviation > 0, deviation, 1)])


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether images `[n, channels, height, width]` have their channels first.

    >>> channels_first((9, 3, 32, 32)), channels_first((9, 32, 32, 3)), channels_first((9, 3, 3, 3))
    (True, False, False)
    """
    return len(shape) == 4 and shape[1] in (1, 3) and shape[3] not in (1, 3, 4)


def far(parts: Sequence[np.ndarray]) -> bool:
    """Whether numbers, as networks take them, are so large that networks would learn nothing."""
    return parts[0].dtype not in WHITE and any(max(float(x.max()), -float(x.min())) > FAR for x in parts)


def judged(parts: Sequence[np.ndarray], names: Sequence[str] = ()) -> list[str]:
    """Say what of these rows, as networks take them, would keep a network from learning, and what to do.

    Args:
      parts: arrays `[n, ...]` of one form; None of them is empty.
      names: of the columns of a table.

    Example:
      >>> judged([np.full((1, 8, 8, 1), 200.0)])[0][:59]
      'networks would see 200 to 200, but learn best from about -1'
    """
    first, low, high = parts[0], float(min(x.min() for x in parts)), float(max(x.max() for x in parts))
    found = []
    if channels_first(first.shape):
        shape = "x".join(map(str, first.shape[1:]))
        found.append(f"a row has shape {shape}, channels first; networks want them last: np.moveaxis(x, 1, -1)")
    if first.dtype in WHITE:
        white = WHITE[first.dtype]
        if high < white / 2:
            dark = f"so these images would be dark (at most {high:g} of {white})"
            words = f"networks divide {first.dtype} by {white}, {dark}"
            found.append(f"{words}; say what is white: `fedlab data import FILE.npz --range 0 {_white(high)}`")
        return found
    peaks = np.max([np.maximum(x.max(0), -x.min(0).astype(float)) for x in parts], 0)
    pixels = low >= 0 and (first.ndim > 2 or (len(peaks) >= 64 and first.shape[1:] and _whole(first)))
    if max(high, -low) > LARGE and pixels:
        words = f"networks would see {low:g} to {high:g}, but learn best from about -1 to 1; for pixels"
        found.append(f"{words} say their range: `fedlab data import FILE --range 0 {_white(high)}`")
    elif first.ndim > 2 and max(high, -low) > LARGE:
        words = f"networks would see {low:g} to {high:g}, but learn best from about -1 to 1"
        found.append(f"{words}; say the range: `fedlab data import FILE --range {low:g} {high:g}`")
    elif first.ndim == 2:
        some = peaks[peaks > 0]
        if len(some) and (some.max() > LARGE or some.max() > UNEQUAL * some.min()):
            words = "networks would see columns of unequal or large numbers, of which the largest decide"
            order = np.argsort(-peaks, kind="stable")
            shown = [*order[: SHOWN - 1], order[len(some) - 1]] if len(order) > SHOWN else order
            label = [f"{names[k] if len(names) else f'column {k}'} up to {peaks[k]:.4g}" for k in dict.fromkeys(shown)]
            found.append(
                f"{words} ({', '.join(label)}); `fedlab data import FILE --standardise` brings them to one size"
            )
    return found


def _whole(x: np.ndarray) -> bool:
    return x.dtype.kind in "iu" or bool((x == np.rint(x)).all())


def _white(high: float) -> int:
    """The usual value of white for pixels of at most `high`."""
    return next((white for white in (1, 15, 255, 1023, 4095, 16383, 65535) if high <= white), int(np.ceil(high)))
