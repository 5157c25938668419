"""python -m helpers layout: the search on the command line."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core.program import program
from ...core.sign_of_life import lines_in_a_log
from ..catalog.clusters import CLUSTERS, Cluster, find_cluster
from ..catalog.configs import CONFIGS
from ..catalog.models import read_config
from ..config import PRECISIONS, RecipeError
from ..described import links_of
from ..named import options_named
from ..options import LINKS
from .question import OBJECTIVES, SEQ, Question, parse_count

if TYPE_CHECKING:  # its room imports PyTorch, which takes seconds
    from .best import Tell

MOST_PROCESSES = 8
_NEEDED = ("model", "gpus", "tokens_per_batch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument(
        "--model", metavar="NAME|config.json", help="a model from the catalog, or a Hugging Face config (required)"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="number of GPUs (required)")
    parser.add_argument(
        "--gpu", default="h100", metavar="NAME", help=f"a GPU, or a cluster: {', '.join(CLUSTERS)} (default h100)"
    )
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs in a node (default: the cluster's)")
    for flag, text in LINKS.items():
        parser.add_argument(flag, type=float, metavar="GB/s", help=text)
    parser.add_argument(
        "--tokens-per-batch",
        metavar="N",
        help="tokens per step on all GPUs together; 4M is 4 x 2^20 (required)",
    )
    parser.add_argument(
        "--seq", type=int, metavar="N", help=f"tokens in a sequence (default {SEQ}, or the model's longest)"
    )
    parser.add_argument(
        "--objective",
        default="time",
        choices=OBJECTIVES,
        help="what to minimize; cost may leave GPUs idle (default time)",
    )
    parser.add_argument("--precision", default="bf16-amp", choices=PRECISIONS, help="as in plan (default bf16-amp)")


def run(args: argparse.Namespace) -> int:
    """Search and print the answer; return the exit status.

    Raises:
        RecipeError: bad options; the message says what to change.
    """
    lacking = [f"--{name.replace('_', '-')}" for name in _NEEDED if getattr(args, name) is None]
    if lacking:
        named = " and ".join([", ".join(lacking[:-1])] * bool(lacking[:-1]) + lacking[-1:])
        raise RecipeError(f"{named} {'is' if len(lacking) == 1 else 'are'} missing.")
    tokens, links = parse_count(args.tokens_per_batch), links_of(vars(args))
    cluster = replace(cluster_of(args.gpu, args.gpus_per_node), **links)
    seq = seq_of(args.model, args.seq)
    with options_named(add_arguments), _bar() as tell:
        tell("importing PyTorch", 0, 0)
        from ..catalog.archs import arch_of
        from .commands import Asked
        from .kept import answer
        from .words import words

        question = Question(arch_of(args.model), cluster, args.gpus, tokens, seq, args.objective, args.precision)
        result = answer(question, min(MOST_PROCESSES, os.cpu_count() or 1), tell)
    asked = Asked(args.model, args.gpu, args.gpus_per_node, args.link_inside, args.link_outside)
    print(words(question, result, asked, program()))
    return 0


def cluster_of(gpu: str, node: int | None) -> Cluster:
    """Return the cluster called `gpu`, or that of the GPU of this name; `node` changes the GPUs in a node.

    Raises:
        RecipeError: there is none, or there are several.
    """
    if node is not None and node < 1:
        raise RecipeError(f"--gpus-per-node is {node}; it must be at least 1.")
    try:
        return find_cluster(gpu, node)
    except RecipeError as error:
        said = str(error).partition(" `plan --list`")[0]
        raise RecipeError(f"{said} `plan --list` shows all GPUs and clusters.") from None


def seq_of(model: str, seq: int | None) -> int:
    """Return the tokens of a sequence: as asked for, or the usual number if the model reads so many.

    Raises:
        RecipeError: the model does not have that many positions.
    """
    known = CONFIGS.get(model)
    longest = known.context if known else read_config(model)[1].get("max_position_embeddings", 0)
    if seq is None:
        return min(SEQ, longest or SEQ)
    if longest and seq > longest:
        raise RecipeError(f"--seq is {seq:,}, but {model} takes at most {longest:,} tokens.")
    return seq


@contextlib.contextmanager
def _bar() -> "Iterator[Tell]":
    """Show a bar on the terminal, or a line every 30 seconds elsewhere; yield a function that hears of the progress."""
    from tqdm import tqdm

    bar = tqdm(total=1.0, disable=None, leave=False, bar_format="{desc:<32}{bar}{elapsed}")
    with bar, lines_in_a_log(lambda: f"{bar.desc}, {bar.n:.0%}"):

        def tell(what: str, done: float, of: float) -> None:
            bar.set_description_str(f"{what} {done:,.0f}" if not of and done else what, refresh=False)
            bar.n = done / of if of else 0.0
            bar.refresh()

        tell("reading the catalog", 0, 0)
        yield tell
