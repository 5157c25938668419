"""Pairs of submissions that resemble each other, for a human to look at.

Code is cut into words; comments, docstrings, layout and the learner's own names are left out, so that renaming and
reformatting change nothing. Two submissions are compared by runs of `RUN` words in a row: their resemblance is the
share of the shorter one's runs that the longer one contains, so that dead code around a copy changes nothing either.
Runs of the untouched notebook do not count.

No parser is used: code that does not compile is compared all the same, and no submission can exhaust a parser here.
"""

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

RUN = 5  # words
ENOUGH = 60  # runs of a learner's own; shorter answers resemble each other anyway
# Right answers that were written independently share at most 0.34, copies with a few words changed at least 0.93.
ALIKE = 0.6
MOST = 50_000  # characters looked at; no honest answer comes near

# Strings end at the latest where their line or the text does: no word is looked at twice, however odd the code.
_WORD = re.compile(
    r"""(?P<comment>\#[^\n]*)
    | (?P<string>(?:\b[rbufRBUF]{1,2})?(?:
        \"{3}(?:\\.|[^\\])*?(?:\"{3}|\Z) | '{3}(?:\\.|[^\\])*?(?:'{3}|\Z)
        | "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'?))
    | (?P<number>\d[\w.]*)
    | (?P<name>\w+)
    | (?P<layout>[\s,;\\()]+)
    | (?P<sign>\*\*=?|//=?|->|:=|[-+*/%@&|^=!<>]=|<<|>>|.)""",
    re.VERBOSE | re.DOTALL,
)
_UNCHANGED = {*keyword.kwlist, *dir(builtins)}


@dataclass(frozen=True)
class Pair:
    """Two submissions for one exercise that resemble each other.

    Attributes:
        second: None for the published solution.
        share: what they have in common, between `ALIKE` and 1.
    """

    exercise: str
    first: str
    second: str | None
    share: float


def words(code: str) -> list[str]:
    """Return the words of `code` with all that can be changed at no cost left out or made equal."""
    row: list[str] = []
    line_begins = True
    for match in _WORD.finditer(code[:MOST]):
        kind, text = match.lastgroup, match.group()
        if kind == "layout":
            line_begins = line_begins or "\n" in text
            continue
        if kind == "comment" or (kind == "string" and line_begins):  # the second is a docstring
            continue
        line_begins = False
        if kind == "string":
            text = '"'
        elif kind == "name" and text not in _UNCHANGED:
            # Names behind a dot belong to a library, except those of the learner's own objects.
            library = row[-1:] == ["."] and row[-2:-1] != ["self"]
            text = text if library or text == "self" else "n"
        row.append(text)
    return row


def runs(answers: Iterable[str]) -> frozenset[tuple[str, ...]]:
    """Return all runs of `RUN` words that stand in `answers`."""
    windows: set[tuple[str, ...]] = set()
    for code in answers:
        row = words(code)
        windows.update(tuple(row[i : i + RUN]) for i in range(len(row) - RUN + 1))
    return frozenset(windows)


def resemblance(first: frozenset[tuple[str, ...]], second: frozenset[tuple[str, ...]]) -> float:
    """Return what two sets of runs share: 0 nothing, 1 everything; 0 as well when there is too little to compare."""
    if min(len(first), len(second)) < ENOUGH:
        return 0.0
    return len(first & second) / min(len(first), len(second))


def resembling_pairs(
    exercise: str, hand_ins: Sequence[tuple[str, dict[str, str]]], stub: Iterable[str], solution: Iterable[str]
) -> list[Pair]:
    """Find the submissions for one exercise that resemble each other or the published solution, most alike first.

    Two that both resemble the published solution resemble each other for that reason, and are not named as a pair.

    Args:
        hand_ins: (student, answers by cell).
        stub: the untouched answer cells; what stands in them counts for nobody.
        solution: the published ones.
    """
    handed_out = runs(stub)
    own = [(student, runs(answers.values()) - handed_out) for student, answers in hand_ins]
    published = runs(solution) - handed_out
    pairs = [Pair(exercise, student, None, resemblance(theirs, published)) for student, theirs in own]
    pairs = [pair for pair in pairs if pair.share >= ALIKE]
    learnt = {pair.first for pair in pairs}
    for (a, first), (b, second) in combinations(own, 2):
        if a in learnt and b in learnt:
            continue
        share = resemblance(first, second)
        if share >= ALIKE:
            pairs.append(Pair(exercise, a, b, share))
    return sorted(pairs, key=lambda pair: -pair.share)
