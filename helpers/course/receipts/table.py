"""What is said, and what the receipts say of it: a row a measurement, a column a machine. `claims` prints it."""

from collections.abc import Iterator
from dataclasses import dataclass

from ...claims.hardware import NO_VERDICT, needs, verdict
from ...claims.measurement import Measurement
from ...claims.receipt import Receipt
from .quoted_claims import QUOTED_CLAIMS

MARKS = {"held": "✓", "did not hold": "✗", NO_VERDICT: "·", "figure only": "·"}
ORDER = ("held", "held so far", "held in some cases", "did not hold", "not measured")
_JUDGED = ("held", "did not hold")


@dataclass(frozen=True)
class Measured:
    """One measurement of a claim on all machines that made it.

    Attributes:
        said: the claim in a few words.
        subject: what it was measured on.
        figures: by device: the verdict there, and the figure.
        needs: the hardware without which there is no verdict; "" where any will do.
    """

    said: str
    subject: str
    figures: dict[str, tuple[str, str]]
    needs: str

    @property
    def verdicts(self) -> set[str]:
        """What the machines say, those that can."""
        return {said for said, _ in self.figures.values() if said in _JUDGED}

    def cell(self, device: str) -> str:
        """Return what a table shows for a machine: a mark and the figure."""
        said, figure = self.figures.get(device, ("", "-"))
        return f"{MARKS.get(said, '')} {figure}".strip()


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
    measurements: tuple[Measured, ...]

    @property
    def verdict(self) -> str:
        """What the verdicts come to; "held so far" where a part of the claim is about hardware that is not here."""
        said = {each for row in self.measurements for each in row.verdicts}
        if not said:
            return "not measured"
        if said == {"held"} and self.missing:
            return "held so far"
        return said.pop() if len(said) == 1 else "held in some cases"

    @property
    def missing(self) -> list[Measured]:
        """What no machine could judge yet, on any subject."""
        judged = {(row.said, row.needs) for row in self.measurements if row.verdicts}
        return [row for row in self.measurements if not row.verdicts and (row.said, row.needs) not in judged]

    @property
    def devices(self) -> list[str]:
        """The machines that measured anything of it."""
        return list(dict.fromkeys(device for row in self.measurements for device in row.figures))


def claim_results(receipts: list[Receipt]) -> Iterator[ClaimResults]:
    """Yield the results of each claim, in the order of their numbers."""
    for claim, said in QUOTED_CLAIMS.items():
        found: dict[tuple[str, str], Measured] = {}
        for receipt in receipts:
            for row in (row for _, row in receipt.rows() if row.claim == claim):
                key = row.said, row.subject
                measured = found.setdefault(key, Measured(*key, {}, _needs(row)))
                measured.figures[receipt.device] = verdict(row, receipt.kind), row.figure.strip()
        yield ClaimResults(claim, said.words, said.source, tuple(found.values()))


def _needs(row: Measurement) -> str:
    return needs(row) or ("a machine that can" if row.measured is None else "")


def by_verdict(results: list[ClaimResults]) -> dict[str, list[ClaimResults]]:
    """Return the claims under each verdict, the verdicts in their usual order; without empty ones."""
    groups = {verdict: [each for each in results if each.verdict == verdict] for verdict in ORDER}
    return {verdict: theirs for verdict, theirs in groups.items() if theirs}


def not_measured(results: list[ClaimResults]) -> list[tuple[ClaimResults, str, str]]:
    """Return what no machine could judge yet: the claim, what is said, and the hardware that it takes."""
    found = {(each.claim, row.said): (each, row.said, row.needs) for each in results for row in each.missing}
    return list(found.values())


def claims_table(receipts: list[Receipt]) -> str:
    """Return all results in Markdown: a summary, what is missing, and a table for each claim."""
    results = list(claim_results(receipts))
    return "\n\n".join([_summary(results), _missing(results), *map(_section, results)])


def _summary(results: list[ClaimResults]) -> str:
    so_far = "*Held so far* means that a part of the claim, listed below, has not been measured yet."
    lines = ["## In short", "", so_far]
    for said, theirs in by_verdict(results).items():
        lines += ["", f"**{said.capitalize()}** ({len(theirs)})", ""]
        lines += [f"- {each.claim}: {each.words}" for each in theirs]
    return "\n".join(lines)


def _missing(results: list[ClaimResults]) -> str:
    how = "`make gpu` measures these on a machine with the hardware that the last column names."
    lines = ["## Not measured yet", "", "<!-- repository -->", how, "<!-- end of repository -->", ""]
    lines += [_line(("Claim", "Statement", "Needs")), _line(["---"] * 3)]
    lines += [_line((each.claim, said, needed)) for each, said, needed in not_measured(results)]
    return "\n".join(lines) if not_measured(results) else "## Not measured yet\n\nNothing is left."


def _section(results: ClaimResults) -> str:
    said = results.verdict.capitalize()
    lines = [f"## {results.claim} · {results.words}", "", f"Source: {results.source}. **{said}.**"]
    if results.measurements:
        head = ("What was tested", "On what", *results.devices)
        lines += ["", _line(head), _line(["---"] * len(head))]
        lines += [_line(cells(results, row)) for row in results.measurements]
    return "\n".join(lines)


def cells(results: ClaimResults, row: Measured) -> list[str]:
    """Return what a table shows of a measurement: what, on what, and the figure of each machine with its mark."""
    return [row.said, row.subject, *map(row.cell, results.devices)]


def _line(texts: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"
