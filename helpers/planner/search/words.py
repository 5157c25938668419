"""An answer in words: the table of the best layouts, their commands, and a line for each that is not among them."""

from collections.abc import Sequence
from itertools import takewhile

from ...core.table import text_table
from ...core.units import GiB
from ..grades import FITS, TIGHT
from .commands import Asked, plan_command
from .found import Found, ties_with
from .kept import Answer
from .names import name
from .question import Question


def words(question: Question, answer: Answer, asked: Asked, program: str) -> str:
    """Return what the command prints.

    Args:
        question, answer: what was asked, and what was found.
        asked: the words of the question, which the commands below the table repeat.
        program: how the user starts the course's program.
    """
    cluster = question.cluster
    lines = [
        f"{question.arch.count() / 1e9:,.1f}B parameters on {question.gpus} x {cluster.gpu.name} "
        f"({cluster.node} per node), {question.tokens:,} tokens per step in sequences of {question.seq:,}",
        f"{answer.layouts:,} layouts; {answer.planned:,} planned, the others ruled out by their bounds"
        + (f"; {answer.refused:,} could not be simulated" if answer.refused else ""),
        "",
    ]
    if not answer.best:
        return "\n".join([*lines, "None of them fits. More GPUs, larger ones, or shorter sequences may help."])
    rows: list[tuple[str, ...]] = [("    layout", "GiB", "", "s per step", "interval", "MFU", "GPU-h per 1e9 tokens")]
    for number, found in enumerate(answer.best, 1):
        rows.append(
            (
                f"{number:>2}  {name(found.layout)}{' *' * _needs_a_fork(found)}",
                f"{found.nbytes / GiB:.1f}",
                found.grade(cluster.gpu.room),
                f"{found.seconds:.4g}",
                f"{found.low:.3g}-{found.high:.3g}",
                f"{found.mfu:.1%}",
                f"{found.gpu_hours:,.0f}",
            )
        )
    notes = [ties(answer.best, question.objective), tight(answer.best, cluster.gpu.room), forks(answer.best)]
    lines += [text_table(rows), *filter(None, notes)]
    return "\n".join([*lines, *others(answer), *commands(answer.best, asked, program)])


def others(answer: Answer) -> list[str]:
    """Return lines about common layouts that are not in the table: those that tie with the best, then the others."""
    near = [loser for loser in answer.losers if loser.ties]
    far = [loser for loser in answer.losers if not loser.ties]
    tied = "Common layouts that are slower by less than the forecast's error, and so may be as good as row 1:"
    lines = ["", tied] if near else []
    lines += [f"  {loser.name}: {loser.reason}" for loser in near]
    lines += ["", "Common layouts that lose:"] if far else []
    return lines + [f"  {loser.name}: {loser.reason}" for loser in far]


def commands(best: Sequence[Found], asked: Asked, program: str) -> list[str]:
    """Return lines with a command for each row, which plans it in detail, and how to have its settings written."""
    engines = dict.fromkeys(found.layout.engine for found in best)
    added = " or ".join(f"--export {engine}" for engine in engines)
    each = ", whichever its --engine is," if len(engines) > 1 else ""
    but = " (not of rows marked *)" if any(map(_needs_a_fork, best)) else ""
    lines = [f"{number:>2}  {plan_command(found.layout, asked, program)}" for number, found in enumerate(best, 1)]
    return ["", f"These commands plan the rows in detail. With {added}{each} they print a row's settings{but}:", *lines]


def tight(best: Sequence[Found], room: int) -> str:
    """Say what "tight" means, and which row is the first that fits; "" where no row is tight."""
    grades = [found.grade(room) for found in best]
    if TIGHT not in grades:
        return ""
    first = f"Row {grades.index(FITS) + 1} is the first that fits." if FITS in grades else "No row fits with certainty."
    return f"tight: what is allocated fits, but what the allocator reserves may not, so the run may fail. {first}"


def _needs_a_fork(found: Found) -> bool:
    return found.layout.engine == "megatron" and found.layout.schedule == "zero-bubble"


def forks(best: Sequence[Found]) -> str:
    """Say which of the best layouts no release of their engine can run; "" where all can.

    Megatron-LM's schedules are 1F1B and interleaved 1F1B; the authors of zero bubble (arXiv 2401.10241) have a fork.
    """
    numbers = [str(number) for number, found in enumerate(best, 1) if _needs_a_fork(found)]
    if not numbers:
        return ""
    return (
        f"* Megatron-LM itself has no zero-bubble schedule. Row{'s' * (len(numbers) > 1)} {', '.join(numbers)}: use a "
        "fork that has it, or the best row with another schedule."
    )


def ties(best: Sequence[Found], objective: str = "time") -> str:
    """Say which of the best layouts the forecast cannot tell apart; "" where it is one alone."""
    if len(best) < 2:
        return ""
    first = best[0]
    alike = list(takewhile(lambda found: ties_with(first, found, objective), best))
    if len(alike) < 2:
        return ""
    values = [found.seconds * (found.layout.ranks if objective == "cost" else 1) for found in alike]
    apart = max(values) / values[0] - 1
    low, high = (bound / first.seconds - 1 for bound in (first.low, first.high))
    which = f"All {len(best)}" if len(alike) == len(best) else f"The first {len(alike)} of {len(best)}"
    return (
        f"{which} tie: they lie within {apart:.1%}, and each forecast may be off by {low:.0%} to {high:+.0%}. "
        "Choose by memory, or by what is simplest to run."
    )
