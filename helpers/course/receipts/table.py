"""What is said, and what the receipts say of it: a row a measurement. `python -m helpers claims` prints it."""

from collections.abc import Iterator
from dataclasses import dataclass

from ...claims.measurement import Measurement
from ...claims.receipt import Receipt
from .quoted_claims import QUOTED_CLAIMS

_MARKS = {"held": "✓", "did not hold": "✗"}
_HEADER = ("Claim", "Measured", "On what", "Figure", "Verdict", "Machine")


@dataclass(frozen=True)
class ClaimResults:
    """One claim of the syllabus, with everything that was measured of it on any machine.

    Attributes:
        claim: its number, e.g. "C7".
        words: what is said.
        source: where it is said, in Markdown.
    """

    claim: str
    words: str
    source: str
    measurements: tuple[Measurement, ...]

    @property
    def verdict(self) -> str:
        """ "held" or "did not hold" where all measurements agree, else "held only for some"."""
        tested = [row.held for row in self.measurements if row.measured is not None]
        if not tested:
            return "not measured"
        return "held" if all(tested) else "held only for some" if any(tested) else "did not hold"


def claim_results(receipts: list[Receipt]) -> Iterator[ClaimResults]:
    """Yield the results of each claim, in the order of their numbers."""
    for claim, said in QUOTED_CLAIMS.items():
        rows = tuple(row for receipt in receipts for _, row in receipt.rows() if row.claim == claim)
        yield ClaimResults(claim, said.words, said.source, rows)


def claims_table(receipts: list[Receipt]) -> str:
    """Return all results in Markdown: a heading a claim, and under it a row a measurement."""
    return "\n\n".join(map(_section, claim_results(receipts)))


def _section(results: ClaimResults) -> str:
    verdict = results.verdict.capitalize()
    lines = [f"## {results.claim} · {results.words}", "", f"Said in: {results.source}. **{verdict}.**"]
    if results.measurements:
        lines += ["", _line(_HEADER), _line(["---"] * len(_HEADER))]
        lines += [_line([results.claim, *cells(row)]) for row in results.measurements]
    return "\n".join(lines)


def cells(row: Measurement) -> list[str]:
    """Return what a table shows of a measurement: what, on what, the figure, the verdict with its mark, the machine."""
    return [row.said, row.subject, row.figure.strip(), f"{_MARKS.get(row.verdict, '·')} {row.verdict}", row.device]


def _line(texts: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"
