"""Say which check kills which mutant: `python -m tests.mutants.table x2`, as a table in Markdown.

Each mutant meets all checks of its part, not only the one meant for it. A check that kills nothing by itself may be
one too many; a mutant that many checks kill is a mistake that costs more than its point.
"""

import argparse
from collections import Counter

from helpers.exercises.base import Part
from helpers.exercises.checking import find_part

from . import Mutant, topics
from .trial import try_answer


def killers(mutants: list[Mutant], seed: int = 0) -> dict[Mutant, list[str]]:
    """Return, by mutant, the checks that reject it."""
    return {mutant: sorted(try_answer(mutant.part, mutant.source(), seed)) for mutant in mutants}


def table(part: Part, mutants: list[Mutant], found: dict[Mutant, list[str]]) -> str:
    """Return the rows of one part: how many mutants each check is meant for and kills, also alone; then each mutant."""
    kills = Counter(check for mutant in mutants for check in found[mutant])
    alone = Counter(found[mutant][0] for mutant in mutants if len(found[mutant]) == 1)
    meant = Counter(mutant.rejected_by for mutant in mutants)
    lines = [f"## {part.name}", "", "| check | meant for it | killed | by it alone |", "|---|--:|--:|--:|"]
    for check in [check.name() for check in part.checks]:
        lines.append(f"| {check} | {meant[check]} | {kills[check]} | {alone[check]} |")
    lines += ["", "| mutant | killed by |", "|---|---|"]
    lines += [f"| {mutant.name} | {', '.join(found[mutant]) or 'nothing'} |" for mutant in mutants]
    return "\n".join(lines)


def main() -> None:
    """Print the tables of an exercise, or of one part."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.table", description=__doc__)
    parser.add_argument("name", help="an exercise or a part: x2, x2.scaled")
    name = parser.parse_args().name
    exercise = name.partition(".")[0]
    of_part: dict[str, list[Mutant]] = {}
    for mutant in topics()[exercise].mutants:
        if name in (exercise, mutant.part):
            of_part.setdefault(mutant.part, []).append(mutant)
    for part, mutants in of_part.items():
        print(table(find_part(part), mutants, killers(mutants)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
