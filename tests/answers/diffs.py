"""Wrong answers to a part, written as diffs of the reference.

    @@ scale_grows: the scale never grows @@
    -                self.current_scale *= self.growth_factor

The header names the check that must reject the answer, and the answer. As in any diff, lines that begin with "-" are
removed, lines that begin with "+" are added, and lines that begin with a space stay. A hunk is found by its lines: it
has no line numbers, and as few lines that stay as make its place unique. These lines are optional:

    says: WORDS     below the header: words that the diagnosis must have
    @@ and @@       the next hunk of the same answer
    # COMMENT
"""

import re
from dataclasses import replace
from pathlib import Path

from .mutant import ROOT, Hunk, Mutant

_HEADER = re.compile(r" (\w+): (\S.*) @@")  # after the first @@
_AND = " and @@"
_SAYS = "says: "


def mutants_of(path: Path) -> list[Mutant]:
    """Return the wrong answers in the file of a part, such as x1/scaler.diff."""
    place = path.relative_to(ROOT).as_posix()
    return parse(path.read_text(encoding="utf-8"), f"{path.parent.name}.{path.stem}", place)


def parse(text: str, part: str, place: str) -> list[Mutant]:
    """Return the wrong answers to `part` in a file's text; errors begin with `place`, the file's name."""
    found: list[Mutant] = []
    preface, *blocks = f"\n{text}".split("\n@@")
    _allow("#", preface.split("\n"), place, 0, "a line before the first header")
    number = 1 + preface.count("\n")
    for block in blocks:
        header, *lines = block.split("\n")
        says = lines[0].removeprefix(_SAYS) if lines and lines[0].startswith(_SAYS) else ""
        hunk = _hunk(lines[1:] if says else lines, place, number, number + 1 + bool(says))
        if match := _HEADER.fullmatch(header):
            check, name = match.groups()
            found.append(Mutant(name, part, check, (hunk,), says))
        elif header == _AND and found and not says:
            found[-1] = replace(found[-1], hunks=(*found[-1].hunks, hunk))
        else:
            raise ValueError(f"{place}:{number}: a header is '@@ CHECK: NAME @@', or '@@ and @@' later in an answer")
        number += 1 + block.count("\n")
    return found


def _hunk(lines: list[str], place: str, header: int, first: int) -> Hunk:
    """Return a hunk; its header and its first line have these numbers."""
    _allow("-+ #", lines, place, first, "a line of a hunk begins with '-', '+' or a space")
    while lines and lines[-1][:1] in "#":  # what precedes the next header
        lines.pop()
    old, new = ("".join([f"{line[1:]}\n" for line in lines if line[:1] in signs]) for signs in ("- ", "+ "))
    if not old.strip():
        raise ValueError(f"{place}:{header}: nothing says where this goes; add a line that stays")
    if old == new:
        raise ValueError(f"{place}:{header}: this changes nothing")
    return Hunk(f"{place}:{header}", old, new)


def _allow(signs: str, lines: list[str], place: str, first: int, error: str) -> None:
    """Raise the error with its place unless each line is empty or begins with one of `signs`."""
    for number, line in enumerate(lines, start=first):
        if line[:1] not in signs:
            raise ValueError(f"{place}:{number}: {error}")
