"""A learner's table of the sharded matmuls, beside the measured collectives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.table import show_table
from ...ranks.collectives import Collective

Guess = tuple[str, int] | None


@dataclass(frozen=True)
class MatmulTable:
    """For each case a guess: which collective, and the bytes of its full message. None: not guessed."""

    guesses: Mapping[str, Guess]

    def reveal(self, seen: Mapping[str, Sequence[Collective]]) -> None:
        """Print each guess beside the collectives that a rank called."""
        rows = [("case", "your guess", "measured", "")]
        right = guessed = 0
        for case, calls in seen.items():
            measured = [(call.name, call.nbytes) for call in calls] or [("nothing", 0)]
            guess = self.guesses.get(case)
            hit = guess is not None and [tuple(guess)] == measured
            right, guessed = right + hit, guessed + (guess is not None)
            remark = "" if guess is None else "as you said" if hit else _difference(tuple(guess), measured)
            rows.append((case, _words([guess] if guess else []), _words(measured), remark))
        show_table(rows)
        if guessed:
            print(f"{right} of {len(seen)} as you said.")
        else:
            print("You have not guessed. Fill in the table above: being wrong costs nothing here.")


def _words(calls: Sequence[tuple[str, int]]) -> str:
    """Write what is called, and its bytes where there are some."""
    return " + ".join(f"{name} of {n:,} B" if n else name for name, n in calls) or "-"


def _difference(guess: tuple[str, int], measured: Sequence[tuple[str, int]]) -> str:
    if [guess[0]] != [name for name, _ in measured]:
        return "another collective"
    return f"bytes: {guess[1] / measured[0][1]:.3g} x the measured number" if measured[0][1] else "nothing is sent"
