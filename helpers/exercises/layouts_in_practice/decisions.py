"""Questions to which there is no one right layout: the planner judges what is proposed."""

from ...planner.search.found import Found
from ...planner.search.question import Question
from ...planner.search.searched import Asked, searched

WITHIN = 0.10  # a proposal may be so much slower than the best that the search has found

DECISIONS = {
    "long": Asked("llama-3.1-8b", "dgx-h100", 8, 2**19, 131_072),  # sequences, fewer than GPUs
    "small": Asked("llama-3.1-8b", "dgx-h100", 64, 2**18),  # a step, with fewer sequences than GPUs
}


def decisions() -> dict[str, Question]:
    """Return the questions by name."""
    return {name: asked.question() for name, asked in DECISIONS.items()}


def best_known(name: str) -> Found:
    """Return the best layout that the search has found for the question called `name`."""
    return searched(DECISIONS[name]).best[0]
