"""python -m helpers plan: the planner on the command line."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from ..core.units import human_bytes
from .catalog.clusters import CLUSTERS
from .catalog.configs import CONFIGS
from .catalog.gpus import GIGA, GPUS
from .catalog.models import check_name, limits, model_names
from .catalog.this_machine import THIS
from .layout.layout import PRECISIONS as LAYOUT_PRECISIONS
from .layout.layout import Layout
from .layout_cli import add_layout_arguments, run_layout
from .layout_options import SHARED
from .plan import Plan, plan
from .recipe import (
    ATTENTIONS,
    CHECKPOINTINGS,
    IMPLEMENTATIONS,
    LORA_DTYPES,
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    QUANTIZATIONS,
    SHARDINGS,
    Recipe,
    RecipeError,
)
from .short_help import shorten_help


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command; those of a recipe have its defaults, if a layout does not share them."""
    parser.add_argument("--model", metavar="NAME|config.json", help="a model of the catalog, or a Hugging Face config")
    _add_recipe(parser)
    parser.add_argument(
        "--gpu", metavar="NAME|this", help="ask about one GPU, or this machine; remedies if it is too small"
    )
    parser.add_argument("--budget", type=float, metavar="GiB", help="the same for a GPU of this size")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="show the models, GPUs and clusters that it knows")
    parser.add_argument("--measure", action="store_true", help="train two real steps on this machine's GPU as well")
    parser.add_argument("--rows", metavar="FILE.jsonl", help="plan many layouts, one a line (fields: docs/planner.md)")
    parser.add_argument("--out", metavar="FILE", help="where the answers to --rows go, or what --export writes")
    parser.set_defaults(layout_options=add_layout_arguments(parser))
    shorten_help(parser)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of a recipe but the model; some have a second, shorter name."""
    default = {field.name: field.default for field in fields(Recipe)}

    def option(flag: str, text: str, *aliases: str, **how: object) -> None:
        name = flag.removeprefix("--").replace("-", "_")
        value = default[name]
        said = f"default {value}"
        if name in SHARED:  # left open: a layout has another default
            of_layout = Layout.__dataclass_fields__[name].default
            said += f"; of a layout {of_layout}" if of_layout != value else ""
            value = None
        parser.add_argument(flag, *aliases, default=value, help=f"{text} ({said})", **how)

    option("--micro-batch-size", "sequences or images in a micro-batch", "--batch", type=int, metavar="N")
    option("--seq", "tokens in a sequence", type=int, metavar="N")
    option("--image-size", "pixels a side; 0: the model's own", type=int, metavar="N")
    precisions = tuple(dict.fromkeys((*PRECISIONS, *LAYOUT_PRECISIONS)))
    option("--precision", "bf16 is all in BF16; amp keeps FP32 weights; fp8 in layouts only", choices=precisions)
    option("--optimizer", "which optimizer", choices=OPTIMIZERS)
    option("--optimizer-impl", "which implementation of it", choices=IMPLEMENTATIONS)
    option("--lora-rank", "rank of LoRA adapters; 0: train the whole model", type=int, metavar="R")
    option("--lora-alpha", "scale of the adapters; 0: twice the rank", type=float, metavar="A")
    parser.add_argument(
        "--lora-targets", default="", metavar="A,B", help="layers with adapters (default: PEFT's choice)"
    )
    option("--lora-dropout", "dropout in front of adapters", type=float, metavar="P")
    option("--lora-dtype", "dtype of adapters", choices=LORA_DTYPES)
    option("--quantize", "format of the frozen base", choices=QUANTIZATIONS)
    option("--attention", "fused, or with scores in memory", choices=ATTENTIONS)
    option("--checkpointing", "which blocks are recomputed", choices=CHECKPOINTINGS)
    option("--gradient-accumulation-steps", "micro-batches in a step", "--accumulate", type=int, metavar="N")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="torch.compile fuses chains of operations (default no; of a layout yes)",
    )
    parser.add_argument("--step-in-backward", action="store_true", help="update parameters during the backward pass")
    parser.add_argument(
        "--no-set-to-none",
        "--keep-grads",
        dest="set_to_none",
        action="store_false",
        help="zero gradients in place instead of freeing them",
    )
    option("--ranks", "GPUs", type=int, metavar="N")
    option("--shard", "what is sharded over them", choices=SHARDINGS)
    option("--offload", "what host memory holds", choices=OFFLOADS)
    parser.add_argument("--expandable-segments", action="store_true", help="the allocator's option of that name")


def run(args: argparse.Namespace) -> int:
    """Plan the recipe in `args` and print the plan; return the exit status.

    Raises:
        RecipeError: bad options; the message says what to change.
    """
    if args.list:
        print(_catalog())
        return 0
    if args.rows:
        return _run_rows(args)
    if not args.model:
        raise RecipeError("Which model? --model NAME, or --list to see the catalog.")
    check_name(args.model)  # before anything that takes seconds
    if any(getattr(args, name) is not None for name in args.layout_options):
        with _stand_ins_only():
            return run_layout(args)
    if args.out:
        raise RecipeError("--out is the file of --rows or --export.")
    values = {field.name: value for field in fields(Recipe) if (value := getattr(args, field.name)) is not None}
    values["lora_targets"] = tuple(name.strip() for name in args.lora_targets.split(",") if name.strip())
    result, measured = _plan_with_bar(Recipe(**values), args)
    if args.json:
        print(json.dumps(result.to_json() | ({"measured_bytes": measured} if measured else {}), indent=2))
        return 0
    print(result)
    if measured:
        error = result.peak_allocated_bytes / measured - 1
        predicted = human_bytes(result.peak_allocated_bytes)
        print(f"  predicted {predicted}, measured {human_bytes(measured)}, error {error:+.1%}")
    return 0


def _plan_with_bar(recipe: Recipe, args: argparse.Namespace) -> tuple[Plan, int | None]:
    """Return the plan, and the measured peak in bytes if it was asked for; a bar on the terminal shows the stages."""
    from tqdm import tqdm

    # The bar goes to the terminal, never into a pipe.
    with _stand_ins_only(), tqdm(total=5, disable=None, leave=False, bar_format="{desc:<24}{bar}{elapsed}") as bar:

        def tell(stage: str) -> None:
            if stage:
                bar.set_description_str(stage)
                bar.update()

        result = plan(recipe, args.gpu, args.budget, tell)
        if not args.measure:
            return result, None
        from .measure import measure_recipe

        tell("measuring")
        return result, measure_recipe(recipe).peak_bytes


@contextlib.contextmanager
def _stand_ins_only() -> Iterator[None]:
    """Let bitsandbytes and torchao look missing: transformers and PEFT import them if they can, which takes seconds.

    The planner has stand-ins for what it needs of them. In a notebook nothing is hidden: it may want the real ones.
    """
    hidden = [name for name in ("bitsandbytes", "torchao") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def _run_rows(args: argparse.Namespace) -> int:
    """Plan every line of a file; return the exit status."""
    from tqdm import tqdm

    from .rows.answers import answer_rows, read_lines

    lines = list(read_lines(Path(args.rows).read_text(encoding="utf-8")))
    with _stand_ins_only(), tqdm(total=len(lines), disable=None, leave=False, desc="layouts") as bar:
        answers = answer_rows(lines, lambda done: bar.update(done - bar.n))
    text = "".join(json.dumps(answer) + "\n" for answer in answers)
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8", newline="\n")
    else:
        print(text, end="")
    return 0


def _catalog() -> str:
    lines = ["models"]
    mixtures = [name for name, config in CONFIGS.items() if config.mixture]
    for name in [*model_names(), *mixtures]:
        context, side = limits(name)
        reads = f"images of {side} x {side}" if side else f"up to {context:,} tokens"
        lines.append(f"  {name:<18}{reads}{'; in layouts only' if name in mixtures else ''}")
    lines += ["", f"{'GPUs':<18}{'GiB usable':>11}{'GB/s':>8}{'TFLOP/s: FP32':>16}{'TF32':>8}{'16 bits':>9}{'FP8':>8}"]
    for gpu in GPUS.values():
        tf32, flops8 = (f"{rate / 1e12:,.0f}" if rate else "-" for rate in (gpu.tf32, gpu.flops8))
        rates = f"{gpu.flops32 / 1e12:>16,.0f}{tf32:>8}{gpu.flops16 / 1e12:>9,.0f}{flops8:>8}"
        lines.append(f"  {gpu.name:<16}{gpu.total / 2**30:>11.2f}{gpu.bandwidth / 1e9:>8,.0f}{rates}")
    lines.append(f"  {THIS:<16}this machine, once python -m helpers roofline has measured it")
    lines += ["", f"{'clusters':<18}{'of':<16}{'in a node':>9}{'GB/s inside':>13}{'outside':>9}"]
    for cluster in CLUSTERS.values():
        links = f"{cluster.inside / GIGA:>13,.0f}{cluster.outside / GIGA:>9,.3g}"
        lines.append(f"  {cluster.name:<16}{cluster.gpu.name:<16}{cluster.node:>9}{links}")
    return "\n".join(lines)
