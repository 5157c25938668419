"""An answer in words: the table of the best layouts, and a line for each that loses."""

from ...core.table import text_table
from ...core.units import GiB
from .kept import Answer
from .names import name
from .question import Question


def words(question: Question, answer: Answer) -> str:
    """Return what the command prints."""
    cluster = question.cluster
    lines = [
        f"{question.arch.count() / 1e9:,.1f}B parameters on {question.gpus} x {cluster.gpu.name} "
        f"({cluster.node} a node), {question.tokens:,} tokens a step in sequences of {question.seq:,}",
        f"{answer.layouts:,} layouts; {answer.planned:,} planned, the others ruled out by their bounds"
        + (f"; {answer.refused:,} could not be simulated" if answer.refused else ""),
        "",
    ]
    if not answer.best:
        return "\n".join([*lines, "None of them fits. More GPUs, larger ones, or shorter sequences may help."])
    rows: list[tuple[str, ...]] = [("    layout", "GiB", "s a step", "from-to", "MFU", "GPU-h per 1e9 tokens")]
    for number, found in enumerate(answer.best, 1):
        rows.append(
            (
                f"{number:>2}  {name(found.layout)}",
                f"{found.nbytes / GiB:.1f}",
                f"{found.seconds:.4g}",
                f"{found.low:.3g}-{found.high:.3g}",
                f"{found.mfu:.1%}",
                f"{found.gpu_hours:,.0f}",
            )
        )
    lines.append(text_table(rows))
    if answer.losers:
        lines += ["", "Not among them:"]
        lines += [f"  {loser.name}: {loser.reason}" for loser in answer.losers]
    return "\n".join(lines)
