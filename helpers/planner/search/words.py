"""An answer in words: the table of the best layouts, and a line for each that loses."""

from collections.abc import Sequence

from ...core.table import text_table
from ...core.units import GiB
from .found import Found
from .kept import Answer
from .names import name
from .question import Question


def words(question: Question, answer: Answer) -> str:
    """Return what the command prints."""
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
                f"{number:>2}  {name(found.layout)}",
                f"{found.nbytes / GiB:.1f}",
                found.grade(cluster.gpu.room),
                f"{found.seconds:.4g}",
                f"{found.low:.3g}-{found.high:.3g}",
                f"{found.mfu:.1%}",
                f"{found.gpu_hours:,.0f}",
            )
        )
    lines += [text_table(rows), *filter(None, [ties(answer.best), forks(answer.best)])]
    if answer.losers:
        lines += ["", "Common layouts that are not among them:"]
        lines += [f"  {loser.name}: {loser.reason}" for loser in answer.losers]
    lines += [
        "",
        "`plan` with a row's sizes (--tp, --pp, ...) plans it in detail; with --export it writes its settings.",
    ]
    return "\n".join(lines)


def forks(best: Sequence[Found]) -> str:
    """Say which of the best layouts no release of their engine can run; "" where all can.

    Megatron-LM's schedules are 1F1B and interleaved 1F1B; the authors of zero bubble (arXiv 2401.10241) have a fork.
    """
    numbers = [
        str(number)
        for number, found in enumerate(best, 1)
        if found.layout.engine == "megatron" and found.layout.schedule == "zero-bubble"
    ]
    if not numbers:
        return ""
    return (
        f"Megatron-LM itself has no zero-bubble schedule. Row{'s' * (len(numbers) > 1)} {', '.join(numbers)}: use a "
        "fork that has it, or the best row with another schedule."
    )


def ties(best: Sequence[Found]) -> str:
    """Say which of the best layouts the forecast cannot tell apart; "" where it is one alone."""
    if len(best) < 2:
        return ""
    first = best[0]
    alike = [found for found in best if found.low <= first.high]
    if len(alike) < 2:
        return ""
    apart = max(found.seconds for found in alike) / first.seconds - 1
    low, high = (bound / first.seconds - 1 for bound in (first.low, first.high))
    which = f"All {len(best)}" if len(alike) == len(best) else f"The first {len(alike)} of {len(best)}"
    return (
        f"{which} tie: they lie within {apart:.1%}, and each forecast may be off by {low:.0%} to {high:+.0%}. "
        "Choose by memory, or by what is simplest to run."
    )
