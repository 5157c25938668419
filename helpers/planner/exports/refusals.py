"""One line for what an engine cannot express."""

from collections.abc import Iterable

from ..config import RecipeError
from ..layout.layout import Layout


def refuse(reasons: Iterable[tuple[bool, str]]) -> None:
    """Raise the first message whose condition holds.

    Raises:
        RecipeError: one of them does.
    """
    for refused, message in reasons:
        if refused:
            raise RecipeError(message)


def other_habits(layout: Layout, engine: str, known: tuple[str, ...]) -> tuple[bool, str]:
    """Return whether the layout was planned with habits that `engine` does not have, and what to do.

    Which copies of weights and gradients are kept depends on the engine; so do the planned bytes.
    """
    return (
        layout.engine not in known,
        f"This layout was planned for --engine {layout.engine}; to export it to {engine}, plan it with --engine "
        f"{' or '.join(known)}.",
    )


def never_written(layout: Layout) -> list[tuple[bool, str]]:
    """Return what no export writes, whether this layout has it, and what to do.

    These are gradients, embedding and loss of a plain loop, and adapters.
    """
    return [
        (
            layout.accumulate_whole or layout.plain_ends,
            "Exports reduce gradients after each micro-batch, and tensor ranks split embedding and loss: leave "
            "accumulate_whole False, leave plain_ends False.",
        ),
        (
            layout.lora_rank > 0,
            "Exports train all weights: leave lora_rank at 0, or plan adapters without --tp, --pp, --cp and --engine.",
        ),
    ]


def graphs(layout: Layout) -> tuple[bool, str]:
    """Return whether the host launches recorded graphs, which this export does not switch on, and what to do."""
    return layout.cuda_graphs, "This export records no CUDA graphs: leave cuda_graphs False, or use megatron."
