"""python -m helpers plan --gpus N: a layout on the command line."""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .catalog.clusters import CLUSTERS, Cluster
from .layout.layout import CONTEXTS, ENGINES, RECOMPUTATIONS, SCHEDULES, ZEROS, Layout
from .layout_options import cluster_of, layout_of
from .recipe import RecipeError
from .whole_run import FAILURES_PER_GPU_DAY, RESTART_SECONDS, WholeRun, read_tokens

if TYPE_CHECKING:  # its room imports PyTorch, which takes seconds
    from .layout.layout_plan import LayoutPlan

WRAPS = ("torchrun", "sbatch", "skypilot")
WHOLE_RUN = {  # an option's name -> the attribute of a `WholeRun`
    "failures_per_gpu_day": "failures_per_gpu_day",
    "checkpoint_seconds": "save",
    "restart_seconds": "restart",
    "price_per_gpu_hour": "price",
}


def add_layout_arguments(parser: argparse.ArgumentParser) -> list[str]:
    """Describe the options of a layout and return their names. None has a default: what is given asks for a layout."""
    group = parser.add_argument_group("layouts", "any of these plans a run over many GPUs")
    default = {field.name: field.default for field in fields(Layout)}
    added: list[argparse.Action] = []

    def option(flag: str, text: str, field: str = "", **how: object) -> None:
        value = f" (default {default[field]})" if field else ""
        added.append(group.add_argument(flag, help=text + value, **how))

    def number(flag: str, text: str, field: str = "", **how: object) -> None:
        option(flag, text, field, type=int, metavar="N", **how)

    number("--gpus", "GPUs of the run; what tensor, pipeline and context leave of them shards the data dimension")
    number("--tensor", "ranks that split each product", "tensor")
    number("--pipeline", "stages of consecutive blocks", "pipeline")
    option("--schedule", "order of the pipeline's micro-batches", "schedule", choices=SCHEDULES)
    number("--virtual-stages", "pieces of the model on a pipeline rank", "virtual_stages")
    number("--context", "ranks that split each sequence", "context")
    option("--context-method", "how they exchange keys and values", "context_method", choices=CONTEXTS)
    number("--expert", "ranks that split the experts", "expert")
    number("--data-shard", "data ranks that split state (default: what the others leave of --gpus)")
    number("--replicate", "groups of such ranks (default 1, or what --data-shard leaves of --gpus)")
    option("--zero", "what is split (default zero3; with engine megatron zero1)", choices=ZEROS)
    on, off = ({"action": "store_const", "const": value} for value in (True, False))
    option("--no-sequence-parallel", "tensor ranks do not split norms by tokens", dest="sequence_parallel", **off)
    option("--tensor-overlap", "tensor ranks send in chunks, beside products", dest="tensor_overlap", **on)
    option("--no-reshard-after-forward", "zero3 keeps gathered parameters", dest="reshard_after_forward", **off)
    option("--accumulate-whole", "zero3 reduces gradients once a step", dest="accumulate_whole", **on)
    option("--plain-ends", "tensor ranks hold the embedding and whole rows of logits", dest="plain_ends", **on)
    number("--micro-batches", "in a step, of a data rank (default: as many as stages)")
    option("--recompute", "what the backward pass computes again", "recompute", choices=RECOMPUTATIONS)
    number("--recompute-every", "only every so many blocks", "recompute_every")
    option("--cuda-graphs", "the host launches recorded graphs", dest="cuda_graphs", **on)
    option("--engine", "whose habits", "engine", choices=ENGINES)
    _add_cluster(option, number)
    option("--roles", "print a table of all pipeline ranks", **on)
    option("--timeline", "draw the step into an SVG, PNG or PDF", metavar="FILE")
    option("--export", "write the layout as a configuration of this engine", metavar="ENGINE")
    option("--wrap", "and as a job for a cluster", choices=WRAPS)
    _add_whole_run(option)
    return [action.dest for action in added]


def _add_cluster(option: Any, number: Any) -> None:
    """Describe the options of the cluster."""
    option("--cluster", f"{', '.join(CLUSTERS)}; or name a --gpu", metavar="NAME")
    number("--gpus-per-node", "GPUs in a node (default: the cluster's)")
    option("--link-inside", "of a GPU to others of its node, each way", type=float, metavar="GB/s")
    option("--link-outside", "of a GPU to other nodes, each way", type=float, metavar="GB/s")


def _add_whole_run(option: Any) -> None:
    """Describe the options of a run of many steps."""
    option("--run-tokens", "of a whole run, like 15T: days, GPU-hours, goodput, how often to save", metavar="N")
    rate = f"that stop the job (default {FAILURES_PER_GPU_DAY:.2g}, as Llama 3 had)"
    option("--failures-per-gpu-day", rate, type=float, metavar="N")
    written = "until the state is written, at the rate a GPU that Llama 3's storage took"
    option("--checkpoint-seconds", f"that training stands still (default: {written})", type=float, metavar="S")
    again = f"from a failure until the job trains again (default {RESTART_SECONDS:g})"
    option("--restart-seconds", again, type=float, metavar="S")
    option("--price-per-gpu-hour", "in any currency: what the run costs", type=float, metavar="P")


def run_layout(args: argparse.Namespace) -> int:
    """Plan the layout in `args`, print the plan and write what is asked for; return the exit status.

    An export without a file is all that is printed, and so is a job: they go where stdout goes.

    Raises:
        RecipeError: bad options; the message says what to change.
    """
    if not args.run_tokens and any(getattr(args, name) is not None for name in WHOLE_RUN):
        raise RecipeError("Failures, checkpoints and prices are about a whole run: of how many --run-tokens?")
    if (args.out or args.wrap) and not args.export:
        raise RecipeError("--out and --wrap are about an --export: to which engine?")
    if args.wrap and not args.out:
        raise RecipeError("--wrap prints the job; --out FILE says where the configuration goes that it starts.")
    if args.export and (args.wrap or not args.out) and (args.roles or args.timeline or args.json):
        what = "job" if args.wrap else "configuration"
        raise RecipeError(f"--export prints the {what} alone here: leave --roles, --timeline and --json out.")
    if args.timeline:
        from .layout.timeline import check_format

        check_format(args.timeline)
    if args.run_tokens:
        read_tokens(args.run_tokens)
    for path in (args.timeline, args.out):
        if path and not Path(path).resolve().parent.is_dir():
            raise RecipeError(f"{path}: there is no such folder.")
    cluster = cluster_of(args)  # before what takes seconds
    with _bar(args) as tell:
        layout = layout_of(args)
        exported = _export(layout, cluster, args) if args.export else ""
        plan = None if exported else _plan(layout, cluster, args, tell)
    if plan is None:
        print(exported, end="")
    else:
        whole = _whole_run(plan, args) if args.run_tokens else None
        more = {"run": whole.to_json()} if whole else {}
        answer = {"model": args.model, **to_json(plan), **more}
        print(json.dumps(answer, indent=2) if args.json else _answer(plan, whole, args))
    return 0


def _plan(layout: Layout, cluster: Cluster, args: argparse.Namespace, tell: Callable[[str], None]) -> "LayoutPlan":
    tell("importing PyTorch")
    from .layout.layout_plan import plan_layout

    plan = plan_layout(layout, cluster, tell=tell)
    if args.timeline:
        tell("drawing")
        from .layout.timeline import write_timeline

        write_timeline(plan, args.timeline)
    return plan


def _whole_run(plan: "LayoutPlan", args: argparse.Namespace) -> WholeRun:
    """Return the run of `--run-tokens` tokens in steps as planned."""
    tokens = plan.layout.tokens
    given = {field: value for name, field in WHOLE_RUN.items() if (value := getattr(args, name)) is not None}
    return WholeRun(
        read_tokens(args.run_tokens),
        plan.layout.ranks,
        plan.layout.arch.count(),
        (tokens / plan.seconds, tokens / plan.high, tokens / plan.low),
        **given,
    )


def _export(layout: Layout, cluster: Cluster, args: argparse.Namespace) -> str:
    """Return what is to be printed in place of a plan: the configuration, or the job that starts the one in a file."""
    from .exports import FILES, command, export, wrap

    text = export(layout, args.model, args.export)
    if not args.out:
        return text
    path = Path(args.out)
    job = ""
    if args.wrap:
        if path.name != FILES[args.export]:
            raise RecipeError(f"The job looks for {FILES[args.export]} beside it: let --out end in this name.")
        if layout.ranks > cluster.node and layout.ranks % cluster.node:
            raise RecipeError(f"{layout.ranks} GPUs do not fill nodes of {cluster.node}: see --gpus-per-node.")
        node = min(layout.ranks, cluster.node)
        job = wrap(command(args.export), layout.ranks // node, node, args.wrap, cluster.name)
    path.write_text(text, encoding="utf-8", newline="\n")
    return job


@contextlib.contextmanager
def _bar(args: argparse.Namespace) -> Iterator[Callable[[str], None]]:
    """Show a bar on the terminal, never in a pipe; yield a function that hears of each stage."""
    from tqdm import tqdm

    distinct = min(3, args.pipeline or 1)  # kinds of stages, at most
    with tqdm(total=distinct + 3, disable=None, leave=False, bar_format="{desc:<34}{bar}{elapsed}") as bar:
        bar.set_description_str(f"reading {args.model}")

        def tell(stage: str) -> None:
            bar.set_description_str(stage)
            bar.update()

        yield tell


def _answer(plan: "LayoutPlan", whole: WholeRun | None, args: argparse.Namespace) -> str:
    from ..core.table import text_table

    layout = plan.layout
    about = f"{args.model}, {layout.precision}, sequences of {layout.seq:,} tokens, as {layout.engine} trains"
    lines = [about, str(plan)]
    lines += [str(whole)] if whole else []
    lines += ["", text_table(plan.role_table())] if args.roles else []
    lines += [f"  timeline in {args.timeline}"] if args.timeline else []
    lines += [f"  for {args.export} in {args.out}"] if args.out else []
    return "\n".join(lines)


def to_json(plan: "LayoutPlan") -> dict[str, Any]:
    """Return a plan as plain lists, dictionaries and numbers; without what each rank does when."""
    ranks = [
        {
            "peak_allocated_bytes": rank.nbytes,
            "at_peak": dict(rank.peak),
            "peak_at": rank.at,
            "in_flight": rank.in_flight,
        }
        for rank in plan.ranks
    ]
    return {
        "layout": asdict(plan.layout),
        "cluster": asdict(plan.cluster),
        "peak_allocated_bytes": plan.worst.nbytes,
        "reserved_bytes": list(plan.reserved),
        "fits": plan.fits,
        "step_seconds": plan.seconds,
        "step_seconds_interval": [plan.low, plan.high],
        "tokens_per_step": plan.layout.tokens,
        "tokens_per_second_per_gpu": plan.tokens_per_second,
        "gpu_hours_per_billion_tokens": plan.gpu_hours_per_billion_tokens,
        "mfu": plan.mfu,
        "hfu": plan.hfu,
        "bound_by": plan.bound_by,
        "parts": dict(plan.parts),
        "pipeline_ranks": ranks,
    }
