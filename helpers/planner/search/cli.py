"""python -m helpers layout: the search on the command line."""

import argparse
import os

from ..catalog.archs import arch_of
from ..catalog.clusters import find_cluster
from ..recipe import RecipeError
from .kept import answer
from .question import OBJECTIVES, Question, parse_count
from .words import words

MOST_PROCESSES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("--model", metavar="NAME|config.json", help="a model of the catalog, or a Hugging Face config")
    parser.add_argument("--gpus", type=int, metavar="N", help="how many GPUs")
    parser.add_argument("--gpu", default="h100", metavar="NAME", help="which GPU or cluster (default h100)")
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs in a node (default: the cluster's)")
    parser.add_argument(
        "--tokens-per-batch", metavar="N", help="tokens of a step over all GPUs; 4M is 4 x 2^20, as batches are"
    )
    parser.add_argument("--seq", type=int, default=8192, metavar="N", help="tokens in a sequence (default 8192)")
    parser.add_argument(
        "--objective", default="time", choices=OBJECTIVES, help="what counts; cost may leave GPUs out (default time)"
    )


def run(args: argparse.Namespace) -> int:
    """Search and print the answer; return the exit status.

    Raises:
        RecipeError: bad options; the message says what to change.
    """
    from tqdm import tqdm

    for name in ("model", "gpus", "tokens_per_batch"):
        if getattr(args, name) is None:
            raise RecipeError(f"--{name.replace('_', '-')} is missing.")
    if args.gpus_per_node is not None and args.gpus_per_node < 1:
        raise RecipeError(f"gpus-per-node is {args.gpus_per_node}; it must be at least 1.")
    cluster = find_cluster(args.gpu, args.gpus_per_node)
    tokens = parse_count(args.tokens_per_batch)
    question = Question(arch_of(args.model), cluster, args.gpus, tokens, args.seq, args.objective)
    # The bar goes to stderr, and never into a pipe.
    with tqdm(desc="layouts", disable=None, leave=False, unit="") as bar:

        def tell(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        result = answer(question, min(MOST_PROCESSES, os.cpu_count() or 1), tell)
    print(words(question, result))
    return 0
