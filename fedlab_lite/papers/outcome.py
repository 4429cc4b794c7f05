"""`Verdict`, and the one rule that makes it from comparisons; `papers.verdicts` makes the comparisons."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fedlab_lite.papers.errors import LEVEL
from fedlab_lite.papers.statistics import Comparison, holm
from fedlab_lite.util.text import markdown

OUTCOMES = ("agrees", "differs", "undecided", "misprint")
SAID = {  # of one reading, and of several; 'undecided' is said of both
    "agrees": ("agrees", "agree"),
    "differs": ("differs", "differ"),
    "misprint": ("finds a misprint", "find a misprint"),
}
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
    holds = [known and each.holds for each, known in zip(found, sure, strict=True)]
    counted = [yes for each, yes in zip(found, holds, strict=True) if each.counted]
    counted = counted if len(counted) < len(found) else []  # it says nothing of what is measured, so it stands apart
    n, total = sum(holds) - sum(counted), len(found) - len(counted)
    if outcome == "undecided":  # what is decided is as claimed
        count = f"{n} of {total} decided" + (f" as {like}" if n else "")
    else:
        count = f"{n} of {total} as {like}" + (f", {len(unsure)} open" if unsure else "")
    count += f", {sum(counted)} of {len(counted)} counted" if counted else ""
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
    unmet, n = premise.reason.partition("; ")[0], len(verdict.comparisons)
    count = f"; 0 of {n} decided" if n else ""
    return Verdict("undecided", shortened(f"says nothing, as its premise is not met: {unmet}{count}"))


def kindest(readings: Mapping[str, Verdict]) -> Verdict:
    """The verdict of the reading that is best for the paper, together with the verdicts of all readings.

    The more readings are tried, the more likely one of them agrees by chance. So a comparison is as claimed only if its
    p value lies below `LEVEL` over the number of readings. Of two readings that agree, the one with more comparisons is
    told. Of others with the same outcome it is the one that lacks fewer of its numbers, then the one with fewer numbers
    of one seed. Then the one with the larger share of comparisons as claimed is told, then the one whose worst
    comparison is best. A reading of one seed, or of one partition, comes last if it points further against the claim
    than one that differs. So does a reading that was not run, or whose method learns nothing.

    Args:
      readings: what was tried -> its verdict: "words", "reference code", "proof", ...

    >>> no, yes = (decide([Comparison("rows", 0.0, fact=fact)]) for fact in (False, True))
    >>> found = kindest({"words": no, "reference code": yes})
    >>> found.outcome, found.reason
    ('agrees', 'rows; 1 of 1 as claimed; read as reference code (1 of 2 readings agrees, 1 differs)')
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
        idle = not found.comparisons or any(not each.learnt for each in found.comparisons)
        last = found.outcome == "undecided" and (idle or (unknown and worst < least))
        merit = len(found.comparisons) if found.outcome == "agrees" else _as_claimed(found)
        lacking = _share(math.isnan(each.difference) for each in measured)
        single = _share(math.isnan(each.error) and each.chance is None for each in measured)
        margin = -worst if worst < math.inf else worst
        return order.index("" if last else found.outcome), lacking, single, -merit, margin

    name, best = min(readings.items(), key=lambda each: place(each[1]))
    if len(readings) == 1:
        return replace(best, readings=readings, read_as=name)
    outcomes = [each.outcome for each in readings.values()]
    count, same = _outcomes(outcomes, best.outcome), outcomes.count(best.outcome)
    ways = [f"read as {name} ({count})", count, f"{same} of {len(outcomes)} readings alike"]
    if same == len(outcomes):
        ways.insert(1, f"read as {name}, of {same} readings")
    reasons = [f"{best.reason}; {way}" for way in ways]
    reason = next((each for each in reasons if len(each.split()) <= WORDS), reasons[-1])
    return replace(best, reason=shortened(reason), readings=readings, read_as=name)


def _outcomes(outcomes: list[str], told: str) -> str:
    """How readings came out, in words.

    >>> _outcomes(["agrees", "undecided", "agrees"], "agrees")
    '2 of 3 readings agree, 1 undecided'
    """
    counts = Counter(outcomes)
    words = {each: SAID.get(each, (each, each))[n > 1] for each, n in counts.items()}
    rest = [f"{n} {words[each]}" for each, n in counts.items() if each != told]
    return ", ".join([f"{counts[told]} of {len(outcomes)} readings {words[told]}", *rest])


def _share(flags: Iterable[bool]) -> float:
    found = list(flags)
    return sum(found) / max(len(found), 1)


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
