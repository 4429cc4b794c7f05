"""Text for next-character prediction: the 90 ids of TFF and FedJax, and windows of 16 ids, role by role."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedlab_lite.util import InputError

LENGTH = 16  # characters in a window (FeDEQ, Sec. V-A)
PAD, BOS, EOS = 0, 1, 2  # padding, beginning and end of a snippet
CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"  # 3 ... 88
OOV = 3 + len(CHARACTERS)  # stands for every other character
NUM_IDS = OOV + 1
MORE_THAN = 100  # a role needs more training windows than this to be used (FeDEQ, Sec. V-A1)

_ID = np.full(129, OOV, np.int32)  # by code point; the last entry is for all code points beyond ASCII
_ID[[ord(character) for character in CHARACTERS]] = np.arange(3, OOV)


def encode(text: str) -> np.ndarray:
    r"""Return the ids `[len(text)]` int32 of the characters, with `OOV` for those outside the vocabulary.

    The vocabulary is that of TensorFlow Federated's tutorial on text generation; the ids are FedJax's.

    >>> encode("Hi~\n").tolist()
    [11, 68, 89, 65]
    """
    return _ID[np.minimum(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4"), 128)]


def join(snippets: Sequence[str]) -> np.ndarray:
    """Join snippets into one sequence of ids, each snippet between `BOS` and `EOS`.

    >>> join(["d", ""]).tolist()
    [1, 3, 2, 1, 2]
    """
    ids = encode("".join(f" {snippet} " for snippet in snippets))
    lengths = np.array([len(snippet) + 2 for snippet in snippets], int)
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1] = BOS, EOS
    return ids


def windows(ids: np.ndarray, length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """Cut `ids` into windows: x int32 `[n, length]`, and y, the same ids one position later.

    n is (len(ids) - 1) / length, rounded up. The rest of the last window is `PAD` in x and y, and never counts.

    Example (FedJax's own, https://fedjax.readthedocs.io/en/latest/fedjax.datasets.html):
      >>> x, y = windows(join(["dhlp", "t"]), length=3)
      >>> x.tolist(), y.tolist()
      ([[1, 3, 4], [5, 6, 2], [1, 7, 0]], [[3, 4, 5], [6, 2, 1], [7, 2, 0]])
    """
    missing = -(len(ids) - 1) % length if len(ids) else 0
    x, y = (np.pad(part, (0, missing)).astype(np.int32).reshape(-1, length) for part in (ids[:-1], ids[1:]))
    return x, y


def by_role(train: Mapping[str, Sequence[str]], test: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Make windows from the snippets of each role: x and y `[n, 16]`, owner `[n]`, each for train and test.

    Roles with at most 100 training windows or no test window are left out; the others are numbered in the order of
    their names. Raises `InputError` when no role is left.

    >>> arrays = by_role({"HAMLET": ["Words, "] * 200, "GHOST": ["Swear."]}, {"HAMLET": ["words."], "GHOST": ["O!"]})
    >>> arrays["x_train"].shape, arrays["x_test"].shape, set(arrays["owner_test"].tolist())
    ((113, 16), (1, 16), {0})
    """
    parts = {"train": [], "test": []}
    for role in sorted(train.keys() & test.keys()):
        cut = {"train": windows(join(train[role])), "test": windows(join(test[role]))}
        if len(cut["train"][0]) > MORE_THAN and len(cut["test"][0]) > 0:
            for part, pair in cut.items():
                parts[part].append(pair)
    if not parts["train"]:
        raise InputError(
            f"none of {len(train)} roles has more than {MORE_THAN} training windows of {LENGTH} characters and a test "
            "window; use texts with more than 1600 characters per role, and the same names in train and test"
        )
    return arrays_of(parts)


def arrays_of(parts: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]]) -> dict[str, np.ndarray]:
    """Concatenate the windows of all roles; `parts` holds one (x, y) per role for 'train' and for 'test'."""
    arrays = {}
    for part, pairs in parts.items():
        arrays[f"x_{part}"], arrays[f"y_{part}"] = (np.concatenate(each) for each in zip(*pairs, strict=True))
        arrays[f"owner_{part}"] = np.repeat(np.arange(len(pairs), dtype=np.int32), [len(x) for x, _ in pairs])
    return arrays
