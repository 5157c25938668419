"""What a check tells the learner: a line for each verdict, and under one that failed what to look at.

In a notebook it is HTML with the colors and the borders of the graded feedback pages; elsewhere it is text.
"""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.inline_code import inline_code
from .base import Outcome, Part, Verdict

_WIDTH = 108  # characters of a line of text
_GOOD, _BAD = "#0072B2", "#D55E00"  # blue and vermilion of Okabe and Ito, as in course/grade/report/parts.html
_BORDERS = {
    Outcome.PASSED: f"5px solid {_GOOD}",
    Outcome.MISSED: f"7px double {_BAD}",
    Outcome.RAISED: f"7px double {_BAD}",
    Outcome.NOT_RUN: "5px dotted #888",
    Outcome.NOT_ATTEMPTED: "5px dotted #888",
}


@dataclass(frozen=True)
class Report:
    """The verdicts on the answers of a part, for people."""

    part: Part
    verdicts: Sequence[Verdict]

    @property
    def headline(self) -> str:
        """The score; or what to do where nothing was attempted."""
        if all(v.outcome is Outcome.NOT_ATTEMPTED for v in self.verdicts):
            return f"{self.part.name}: not attempted yet. Fill in the answer cell, run it, then run this cell again."
        passed, count = sum(v.passed for v in self.verdicts), len(self.verdicts)
        points = f"{sum(v.points for v in self.verdicts)} of {self.part.points} points"
        return f"{self.part.name}: {passed} of {count} checks passed ({points if self.part.points else 'practice'})"

    @property
    def _shown(self) -> Sequence[Verdict]:
        attempted = any(v.outcome is not Outcome.NOT_ATTEMPTED for v in self.verdicts)
        return self.verdicts if attempted else ()

    def __str__(self) -> str:
        lines = [self.headline]
        for v in self._shown:
            lines.append(_wrap(f"{v.check}: {v.rule}", f"  {_mark(v)} "))
            if not v.passed:
                lines += [_wrap(line, "      ") for line in (v.diagnosis or "").splitlines()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<div style='max-width: 62em'><p><b>{html.escape(self.headline)}</b></p>{self._cards()}</div>"

    def _cards(self) -> str:
        cards = []
        for v in self._shown:
            color = _GOOD if v.passed else _BAD
            mark = f"<b style='color: {color}'>{_mark(v)} {html.escape(v.check)}</b>"
            lines = [] if v.passed else (v.diagnosis or "").splitlines()
            diagnosis = "".join(
                f"<div style='font-weight: 600; white-space: pre-wrap'>{inline_code(line)}</div>" for line in lines
            )
            style = f"border-left: {_BORDERS[v.outcome]}; margin: 0 0 .4em; padding: .1em .7em"
            cards.append(f"<div style='{style}'>{mark} {inline_code(v.rule)}{diagnosis}</div>")
        return "".join(cards)


def _mark(verdict: Verdict) -> str:
    return "✓" if verdict.passed else "✗"


def _wrap(text: str, first: str) -> str:
    """Break `text` between words; a notebook would break it anywhere."""
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
