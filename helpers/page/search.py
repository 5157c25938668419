"""The page's search for layouts: results as they come, and the settings that stand for each."""

import os
from typing import TYPE_CHECKING, Any

from ..planner import RecipeError
from .ask import Asked, Emit

if TYPE_CHECKING:  # its room imports PyTorch, which takes seconds
    from ..planner.search.found import Found

_ZEROS = {"none": "0", "zero1": "1", "zero2": "2", "zero3": "3"}
_SAME = ("tensor", "pipeline", "context", "expert", "replicate", "schedule", "virtual_stages", "context_method")
_SAME += ("micro_batch_size", "engine", "tensor_overlap")


def options(asked: Asked) -> list[str]:
    """Return the options of `layout` that search for the layouts of the model, the GPUs and the batch that are set.

    Raises:
        RecipeError: the settings do not say how large the batch is.
    """
    args = asked.parsed()
    if not (args.gpus and args.seq):
        raise RecipeError("A search needs the number of GPUs and the sequence length.")
    model_ranks = (args.tensor or 1) * (args.pipeline or 1) * (args.context or 1)
    data, left = divmod(args.gpus, model_ranks)
    if left:
        raise RecipeError(
            f"The batch depends on the number of data ranks, and {args.gpus} GPUs are not a multiple of "
            f"tensor x pipeline x context = {model_ranks}. Change one of them, then search."
        )
    sequences = data * (args.micro_batch_size or 1) * (args.gradient_accumulation_steps or 1)
    words = ["--model", asked.settings["model"], "--gpus", str(args.gpus), "--gpu", args.cluster]
    return [*words, "--tokens-per-batch", str(sequences * args.seq), "--seq", str(args.seq)]


def search(asked: Asked, emit: Emit) -> None:
    """Emit how far the search is, each layout that is found, and at the end the best.

    Raises:
        RecipeError: what is asked for cannot be.
    """
    from ..planner.catalog.archs import arch_of
    from ..planner.search.cli import MOST_PROCESSES, cluster_of
    from ..planner.search.kept import answer
    from ..planner.search.question import Question
    from ..planner.search.words import ties

    args, words = asked.parsed(), options(asked)
    tokens = int(words[words.index("--tokens-per-batch") + 1])
    cluster = cluster_of(args.cluster, None)
    question = Question(arch_of(args.model), cluster, args.gpus, tokens, args.seq, precision=args.precision)
    result = answer(
        question,
        min(MOST_PROCESSES, os.cpu_count() or 1),
        lambda what, done, of: emit({"stage": what, "done": done / of if of else 0.0}),
        lambda found: emit({"found": _row(found, cluster.gpu.room)}),
    )
    emit(
        {
            "best": [_row(found, cluster.gpu.room) for found in result.best],
            "ties": ties(result.best),
            "losers": [[loser.name, loser.reason] for loser in result.losers],
            "layouts": result.layouts,
            "planned": result.planned,
        }
    )


def _row(found: "Found", room: int) -> dict[str, Any]:
    from ..planner.search.names import name

    layout = found.layout
    settings = {key: getattr(layout, key) for key in _SAME}
    settings |= {"gradient_accumulation_steps": layout.micro_batches, "checkpointing": layout.recompute}
    settings |= {"zero": _ZEROS[layout.zero], "no_reshard_after_forward": not layout.reshard_after_forward}
    return {
        "name": name(layout),
        "bytes": found.nbytes,
        "grade": found.grade(room),
        "seconds": found.seconds,
        "interval": [found.low, found.high],
        "mfu": found.mfu,
        "settings": settings,
    }
