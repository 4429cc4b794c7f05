"""Embedded text `roles`, in place of Shakespeare: one grammar for all roles, but each has its own words and habits.

All roles build sentences by the same templates from the same invented words. Learning together helps, because one role
alone contains few of these words. Personalisation helps too, because roles continue the same characters differently.
Each role has its favourite words, its own names, spelling, punctuation, capitals and length of line.
"""

import re
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

from fedlab_lite.data import text
from fedlab_lite.data.formats import Arrays
from fedlab_lite.data.pool import Pool
from fedlab_lite.data.synthetic import VERSION, cached

# Capitals other than I are places for a determiner, adjective, noun, preposition or verb.
_SENTENCES = (
    *("I V D A N", "thou Vest D N", "D N Veth D A N", "they V D N Aly", "let us V D N P D N", "V not D A N P D N"),
    *("what A N is this", "my N is A and thy N is A", "D A N P D N Veth", "shall I V D N or V D N", "who Veth D N"),
    *("if thou Vest D N, I V D A N", "when D N Veth, we V P D N", "o A N, why Vest thou D N", "there is no N P D A N"),
    *("he that Veth D N will V D N", "come, A N, and V with me P D N", "I did V D N, and he did V D A N"),
    *("D N hath D N, yet D A N Veth not", "Aly I V and Aly thou Vest", "we have V'd D N P D A N", "this is D N of D N"),
)
_GIVEN = {
    "D": "the a my thy his her our this that some every no",
    "P": "in of with upon from by to for against before after under",
}
_COINED = {"N": 500, "V": 250, "A": 250}  # how many of each
_ONSETS = "b br c ch cl d f fl g gr h l m n p pl pr qu r s sh sl st t th tr v w wh"
_VOWELS = "a a e e i i o o u ai ea ee oo ou"
_CODAS = "ck d ft ld ll m mp n nd ng nt p r rd rn rt s sh sk st t th ve"
_SPELLINGS = (  # the usual spelling, and that of some roles
    *(("th", "t'"), ("st", "sht"), ("ea", "ee"), ("ou", "ow"), ("oo", "u"), ("ai", "ay"), ("ck", "kk"), ("er", "ur")),
    *(("ng", "n'"), ("qu", "kw"), ("ld", "l'"), ("sh", "sch"), ("v", "w"), ("c", "k"), ("and ", "& "), ("i", "y")),
    *(("rn", "r'n"), ("ly", "lie"), ("my ", "me "), (" is ", " be "), (" the ", " th' "), ("not", "never")),
)
_STOPS = (".", "!", "?", ";", ":", ",", " -", "...", "!!")


def roles(num_roles: int, *, seed: int = 0) -> Pool:
    """Speeches of `num_roles` roles, as windows of 16 characters: x and y int32 `[n, 16]` (y one position later).

    Ids are those of `text`; 0 is padding. The numbers of training windows per role follow FeDEQ's Table I: more than
    100, mean 465 and standard deviation 506. There are an eighth as many test windows. `owner_train` and `owner_test`
    number the roles. The words and the grammar do not depend on `seed`; the roles do. Raises `InputError` for fewer
    than one role.
    """
    size = 525 * 2 * 4 * text.LENGTH * num_roles
    return cached("roles", _roles, text.NUM_IDS, size, task="next_character", roles=num_roles, seed=seed)


def _roles(num_roles: int, seed: int) -> Arrays:
    rng = np.random.default_rng([VERSION, text.NUM_IDS, seed])
    lexicon = _lexicon()
    parts = {"train": [], "test": []}
    for size in _loquacity(num_roles, rng):
        speeches = _speeches(lexicon, rng)
        for part, n in (("train", size), ("test", max(1, round(0.1272 * size)))):
            parts[part].append(text.windows(_cut(speeches, n, rng)))
    return text.arrays_of(parts)


def _loquacity(num_roles: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the number of training windows per role: skewed, with the mean and deviation of FeDEQ's Table I."""
    even = (rng.permutation(num_roles) + rng.random(num_roles)) / num_roles
    drawn = np.exp([1.2 * NormalDist().inv_cdf(u) for u in even.clip(1e-6, 1 - 1e-6)])
    spread = drawn.std() if num_roles > 1 else 1.0
    sizes = np.round(465 + 506.2 * (drawn - drawn.mean()) / spread).astype(int)
    return np.maximum(text.MORE_THAN + 1, sizes)


def _cut(speeches: Iterator[str], n: int, rng: np.random.Generator) -> np.ndarray:
    """Take ids for `n` windows, of which the last may have padding; the last speech may be cut."""
    length = 1 + text.LENGTH * n - int(rng.integers(text.LENGTH - 1))
    taken, total = [], 0
    while total < length:
        taken.append(next(speeches))
        total += len(taken[-1]) + 2
    ids = text.join(taken)[:length]
    if ids[-1] == text.BOS:
        ids = ids[:-1]
    ids[-1] = text.EOS
    return ids


def _lexicon() -> dict[str, list[str]]:
    """The words that all roles share, by the letter that stands for them in a sentence template."""
    rng = np.random.default_rng([VERSION, text.NUM_IDS])
    given = {kind: words.split() for kind, words in _GIVEN.items()}
    return given | {kind: _coin(n, rng) for kind, n in _COINED.items()}


def _coin(n: int, rng: np.random.Generator) -> list[str]:
    """Invent `n` different words of two or three syllables."""
    onsets, vowels, codas = _ONSETS.split(), _VOWELS.split(), _CODAS.split()
    words: dict[str, None] = {}  # in the order of invention
    while len(words) < n:
        syllables = [str(rng.choice(onsets) + rng.choice(vowels)) for _ in range(rng.integers(2, 4))]
        words["".join(syllables) + str(rng.choice(codas))] = None
    return list(words)


def _speeches(lexicon: dict[str, list[str]], rng: np.random.Generator) -> Iterator[str]:
    """Draw one role and yield its speeches without end."""
    names = [name.title() for name in _coin(8, rng)]
    words = {kind: _favouring(known, 0.4, rng) for kind, known in (lexicon | {"N": names + lexicon["N"]}).items()}
    calls = _favouring(names, 0.5, rng)
    sentences, stops = _favouring(_SENTENCES, 0.3, rng), _favouring(_STOPS, 0.8, rng)
    spellings = [pair for pair in _SPELLINGS if rng.random() < 0.2]
    capitals = rng.choice(("none", "sentences", "lines", "nouns"))
    shouts, line = 0.3 * rng.random() ** 3, int(rng.integers(4, 12))

    def word(place: re.Match) -> str:
        chosen = next(words[place[0]])
        return chosen.title() if capitals == "nouns" and place[0] == "N" else chosen

    while True:
        said = [re.sub("[ADNPV]", word, next(sentences)) + next(stops) for _ in range(rng.geometric(0.4))]
        speech = " ".join(_capital(each) if capitals == "sentences" else each for each in said)
        for usual, own in spellings:
            speech = speech.replace(usual, own)
        if rng.random() < 0.3:
            speech = f"{next(calls)}, {speech}"
        spoken = speech.split(" ")
        spoken = [w.upper() if loud else w for w, loud in zip(spoken, rng.random(len(spoken)) < shouts, strict=True)]
        lines = [" ".join(spoken[k : k + line]) for k in range(0, len(spoken), line)]
        yield "\n".join(_capital(each) if capitals == "lines" else each for each in lines)


def _favouring(words: Sequence[str], own: float, rng: np.random.Generator) -> Iterator[str]:
    """Yield words without end: by Zipf's law in the given order, with the share `own` for a few favourites."""
    weights = (1 - own + own * rng.gamma(0.05, 20, len(words))) / np.arange(20, 20 + len(words))
    while True:
        yield from (words[k] for k in rng.choice(len(words), 256, p=weights / weights.sum()))


def _capital(line: str) -> str:
    return line[:1].upper() + line[1:]
