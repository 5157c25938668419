"""python -m helpers plan: the planner on the command line."""

import argparse
import json
from dataclasses import fields

from ..core.units import human_bytes
from .catalog.gpus import GPUS
from .catalog.models import find_model, model_names
from .plan import plan
from .recipe import (
    ATTENTIONS,
    CHECKPOINTINGS,
    IMPLEMENTATIONS,
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    QUANTIZATIONS,
    SHARDINGS,
    Recipe,
    RecipeError,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command; those of a recipe have its defaults."""
    default = {field.name: field.default for field in fields(Recipe)}

    def option(flag: str, text: str, **how: object) -> None:
        name = flag.removeprefix("--").replace("-", "_")
        parser.add_argument(flag, default=default.get(name), help=f"{text} (default {default.get(name)})", **how)

    parser.add_argument("--model", metavar="NAME|config.json", help="a model of the catalog, or a Hugging Face config")
    option("--batch", "sequences or images in a micro-batch", type=int, metavar="N")
    option("--seq", "tokens in a sequence", type=int, metavar="N")
    option("--image-size", "pixels a side; 0: the model's own", type=int, metavar="N")
    option("--precision", "bf16 is all in BF16; amp keeps FP32 weights", choices=PRECISIONS)
    option("--optimizer", "which optimizer", choices=OPTIMIZERS)
    option("--optimizer-impl", "which implementation of it", choices=IMPLEMENTATIONS)
    option("--lora-rank", "rank of LoRA adapters; 0: train the whole model", type=int, metavar="R")
    option("--lora-alpha", "scale of the adapters; 0: twice the rank", type=float, metavar="A")
    parser.add_argument(
        "--lora-targets", default="", metavar="A,B", help="layers with adapters (default: PEFT's choice)"
    )
    option("--lora-dropout", "dropout in front of adapters", type=float, metavar="P")
    option("--quantize", "how the frozen base is kept", choices=QUANTIZATIONS)
    option("--attention", "fused, or with scores in memory", choices=ATTENTIONS)
    option("--checkpointing", "which blocks are recomputed", choices=CHECKPOINTINGS)
    option("--accumulate", "micro-batches in a step", type=int, metavar="N")
    parser.add_argument("--step-in-backward", action="store_true", help="update parameters during the backward pass")
    parser.add_argument("--keep-grads", action="store_true", help="zero gradients in place in place of freeing them")
    option("--ranks", "GPUs", type=int, metavar="N")
    option("--shard", "what they share out", choices=SHARDINGS)
    option("--offload", "what the host keeps", choices=OFFLOADS)
    parser.add_argument("--expandable-segments", action="store_true", help="the allocator's option of that name")
    parser.add_argument("--gpu", metavar="NAME", help="ask about one GPU; remedies if it is too small")
    parser.add_argument("--budget", type=float, metavar="GiB", help="the same for a GPU of this size")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="show the models and GPUs of the catalog")
    parser.add_argument("--measure", action="store_true", help="train two real steps on this machine's GPU as well")


def run(args: argparse.Namespace) -> int:
    """Plan what `args` ask for and print it.

    Raises:
        RecipeError: bad options; the message says what to change.
    """
    if args.list:
        print(_catalog())
        return 0
    if not args.model:
        raise RecipeError("Which model? --model NAME, or --list to see the catalog.")
    values = {field.name: getattr(args, field.name) for field in fields(Recipe)}
    values["lora_targets"] = tuple(name.strip() for name in args.lora_targets.split(",") if name.strip())
    recipe = Recipe(**values)
    from tqdm import tqdm

    # The bar goes to the terminal, never into a pipe.
    with tqdm(total=4, disable=None, leave=False, bar_format="{desc:<24}{bar}{elapsed}") as bar:

        def tell(stage: str) -> None:
            bar.set_description_str(stage)
            bar.update()

        result = plan(recipe, args.gpu, args.budget, tell)
        measured = None
        if args.measure:
            from .measure import measure_recipe

            tell("measuring")
            measured = measure_recipe(recipe).peak_bytes
    if args.json:
        print(json.dumps(result.to_json() | ({"measured_bytes": measured} if measured else {}), indent=2))
        return 0
    print(result)
    if measured:
        error = result.peak_allocated_bytes / measured - 1
        predicted = human_bytes(result.peak_allocated_bytes)
        print(f"  predicted {predicted}, measured {human_bytes(measured)}, error {error:+.1%}")
    return 0


def _catalog() -> str:
    lines = ["models"]
    for name in model_names():
        subject = find_model(name)
        reads = f"images of {subject.side} x {subject.side}" if subject.images else f"up to {subject.context:,} tokens"
        lines.append(f"  {name:<18}{reads}")
    lines += ["", f"{'GPUs':<18}{'GiB usable':>11}{'16-bit TFLOP/s':>16}{'GB/s':>8}"]
    for gpu in GPUS.values():
        row = f"{gpu.total / 2**30:>11.2f}{gpu.flops16 / 1e12:>16,.0f}{gpu.bandwidth / 1e9:>8,.0f}"
        lines.append(f"  {gpu.name:<16}{row}")
    return "\n".join(lines)
