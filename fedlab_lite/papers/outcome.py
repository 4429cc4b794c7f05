"""`Verdict`, and the one rule that makes it from comparisons; `papers.verdicts` makes the comparisons."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fedlab_lite.papers.errors import LEVEL
from fedlab_lite.papers.statistics import Comparison, holm
from fedlab_lite.util.text import markdown

OUTCOMES = ("agrees", "differs", "undecided", "misprint")
WORDS = 40  # the most words of a reason
FACTS = 3  # the most counted numbers in one


@dataclass(frozen=True)
class Verdict:
    """The outcome of comparisons, the sentence that gives the reason, and the verdicts on each reading of the paper.

    Example:
      >>> found = decide([Comparison("parameters 737,214", 0.0, fact=True)], like="printed")
      >>> found.outcome, found.reason
      ('agrees', 'parameters 737,214; 1 of 1 as printed')
    """

    outcome: str
    reason: str
    comparisons: tuple[Comparison, ...] = ()
    cause: str = ""  # why it differs, if that is known
    like: str = "claimed"  # the word in "3 of 4 as claimed"
    level: float = LEVEL  # below which an adjusted p value must lie for what is as claimed
    readings: Mapping[str, "Verdict"] = field(default_factory=dict)
    read_as: str = ""  # the name of the reading that is told

    def _repr_markdown_(self) -> str:
        return f"**{self.outcome}**: {markdown(self.reason)}"


def decide(
    comparisons: Iterable[Comparison], *, like: str = "claimed", cause: str = "", level: float = LEVEL
) -> Verdict:
    """The verdict on all comparisons of a claim, with p values corrected by Holm's method.

    It agrees if every comparison is as claimed beyond its error. It differs if one comparison is not as claimed, beyond
    its error. Otherwise it is undecided.

    Args:
      level: of what is as claimed; smaller than `LEVEL` where this is one of several readings.
    """
    found = tuple(comparisons)
    about = {"comparisons": found, "cause": cause, "like": like, "level": level}
    if not found:
        return Verdict("undecided", "nothing was compared", **about)
    sure = [p < (level if each.holds else LEVEL) for each, p in zip(found, adjusted_p(found), strict=True)]
    against = [each for each, known in zip(found, sure, strict=True) if known and not each.holds]
    unsure = [each for each, known in zip(found, sure, strict=True) if not known]
    outcome = "differs" if against else "undecided" if unsure else "agrees"
    told, trained = _deciding(against, unsure, found), [each for each in found if each.fact is None]
    alike = [each.words() for each in against or found if each.fact is not None]
    words = ", ".join(alike[:FACTS]) if told.fact is not None and not told.obstacle else told.words()
    seen = told.visible(len(trained), level if told.holds else LEVEL)
    if outcome == "undecided" and not told.obstacle and told.one_partition:
        words += ", and another partition may differ"
    elif outcome == "undecided" and not told.obstacle and math.isfinite(seen):
        few = f", too few {told.each}s to decide" if told.margin else ", the same throughout"
        words += f", not beyond doubt (visible: {told.number(seen).lstrip('+')})" if seen else few
    holding = sum(known and each.holds for each, known in zip(found, sure, strict=True))
    if outcome == "undecided":  # what is decided is as claimed
        count = f"{holding} of {len(found)} decided" + (f" as {like}" if holding else "")
    else:
        count = f"{holding} of {len(found)} as {like}" + (f", {len(unsure)} open" if unsure else "")
    clauses = [words, count, cause if outcome == "differs" else ""]
    return Verdict(outcome, shortened("; ".join(filter(None, clauses))), **about)


def _deciding(against: list[Comparison], unsure: list[Comparison], found: tuple[Comparison, ...]) -> Comparison:
    """The comparison that the reason names.

    It is the one that contradicts the claim most. If none does, it is one that leaves the outcome open. Of these it is
    the clearest that points against the claim, or else the least sure.
    """
    if against:
        return min(against, key=lambda each: each.margin if math.isfinite(each.margin) else -math.inf)

    def open_most(each: Comparison) -> tuple:
        far = -each.margin if math.isfinite(each.margin) else -math.inf
        against = far > 0
        return against, -each.p if against else each.p, bool(each.obstacle), far

    return max(unsure or found, key=open_most)


def adjusted_p(comparisons: Iterable[Comparison]) -> list[float]:
    """Holm's p value of each comparison; counted facts need no correction and do not count as tests."""
    found = list(comparisons)
    rest = iter(holm([each.p for each in found if each.fact is None]))
    return [each.p if each.fact is not None else next(rest) for each in found]


def together(*verdicts: Verdict) -> Verdict:
    """One verdict on all comparisons of several, with Holm's correction over all of them.

    A misprint stays one if nothing that was trained differs.
    """
    if not verdicts:
        return Verdict("undecided", "nothing was compared")
    outcomes = {each.outcome for each in verdicts}
    causes = dict.fromkeys(each.cause for each in verdicts if each.cause and each.outcome in ("differs", "misprint"))
    comparisons = [comparison for each in verdicts for comparison in each.comparisons]
    found = decide(comparisons, like=verdicts[0].like, cause="; ".join(causes))
    if "misprint" in outcomes and "differs" not in outcomes:
        return replace(found, outcome="misprint")
    bare = next((each for each in verdicts if not each.comparisons), None)  # it did not run, or lacks its premise
    if bare and found.outcome != "differs":
        return replace(found, outcome="undecided", reason=bare.reason)
    return found


def again(found: Verdict, comparisons: Iterable[Comparison], level: float | None = None) -> Verdict:
    """A verdict by `decide`, on these comparisons; another, such as a misprint, is returned as it is."""
    plain = decide(found.comparisons, like=found.like, cause=found.cause, level=found.level)
    if not found.comparisons or (found.outcome, found.reason) != (plain.outcome, plain.reason):
        return found
    return decide(comparisons, like=found.like, cause=found.cause, level=level or found.level)


def given(premise: Verdict, verdict: Verdict) -> Verdict:
    """Return the verdict if its premise agrees; otherwise undecided."""
    if premise.outcome == "agrees":
        return verdict
    return Verdict("undecided", shortened(f"says nothing without its premise: {premise.reason}"))


def kindest(readings: Mapping[str, Verdict]) -> Verdict:
    """The verdict of the reading that is best for the paper, together with the verdicts of all readings.

    The more readings are tried, the more likely one of them agrees by chance. So a comparison is as claimed only if its
    p value lies below `LEVEL` over the number of readings. Of two readings that agree, the one with more comparisons is
    told. Of others with the same outcome it is the one with the larger share of comparisons as claimed. If that is
    equal, it is the one whose worst comparison is best. A reading of one seed, or of one partition, comes last if it
    points further against the claim than one that differs. So does a reading whose method learns nothing.

    Args:
      readings: what was tried -> its verdict: "words", "reference code", "proof", ...

    >>> no, yes = (decide([Comparison("rows", 0.0, fact=fact)]) for fact in (False, True))
    >>> found = kindest({"words": no, "reference code": yes})
    >>> found.outcome, found.reason
    ('agrees', 'rows; 1 of 1 as claimed; read as reference code (1 of 2 readings)')
    """
    if not readings:
        return Verdict("undecided", "no reading was tried")
    readings = {name: again(each, each.comparisons, LEVEL / len(readings)) for name, each in readings.items()}
    least = max((_worst(each) for each in readings.values() if each.outcome == "differs"), default=-math.inf)
    order = ("agrees", "misprint", "undecided", "differs", "")

    def place(found: Verdict) -> tuple[float, ...]:
        measured = [each for each in found.comparisons if each.fact is None]
        unknown = any(each.one_partition or not math.isfinite(each.error) for each in measured)
        worst = _worst(found)
        idle = any(not each.learnt for each in found.comparisons)
        last = found.outcome == "undecided" and (idle or (unknown and worst < least))
        merit = len(found.comparisons) if found.outcome == "agrees" else _as_claimed(found)
        return order.index("" if last else found.outcome), -merit, -worst if worst < math.inf else worst

    name, best = min(readings.items(), key=lambda each: place(each[1]))
    if len(readings) == 1:
        return replace(best, readings=readings, read_as=name)
    alike = sum(each.outcome == best.outcome for each in readings.values())
    count = f"{alike} of {len(readings)} readings"
    full = f"{best.reason}; read as {name} ({count})"
    reason = full if len(full.split()) <= WORDS else f"{best.reason}; {count}"
    return replace(best, reason=shortened(reason), readings=readings, read_as=name)


def _worst(found: Verdict) -> float:
    """The margin of the comparison that points furthest against the claim."""
    return min((each.margin for each in found.comparisons if math.isfinite(each.margin)), default=math.inf)


def _as_claimed(found: Verdict) -> float:
    """The share of the comparisons that are as claimed beyond their error, and less of those that merely are."""
    pairs = zip(found.comparisons, adjusted_p(found.comparisons), strict=True)
    shares = [0.01 + (p < found.level) for each, p in pairs if not each.obstacle and each.holds]
    return sum(shares) / max(len(found.comparisons), 1)


def shortened(reason: str) -> str:
    """The reason in at most `WORDS` words: first the last clauses are left out, then words.

    >>> shortened("a " * 30 + "b; c; " + "d " * 20).endswith("b; c")
    True
    """
    clauses = list(dict.fromkeys(reason.split("; ")))
    while len(clauses) > 1 and len(" ".join(clauses).split()) > WORDS:
        clauses.pop()
    words = "; ".join(clauses).split()
    return " ".join(words) if len(words) <= WORDS else f"{' '.join(words[: WORDS - 1])} …"
