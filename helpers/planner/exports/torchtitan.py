"""torchtitan: the layout as a Python module with one configuration, as torchtitan has them since 0.3.

Its trainer is given the module and the function by name: `--module planned --config planned`. Names of fields as in
torchtitan/config/configs.py; https://github.com/pytorch/torchtitan/tree/main/docs describes what they do. A model that
torchtitan knows is taken from there; another Llama is written out in its sizes.
"""

from functools import cache
from pathlib import Path
from typing import Any

from ..layout.layout import Layout
from .heading import heading
from .refusals import graphs, never_written, other_habits, refuse
from .torchtitan_models import Flavor, flavor_of, is_llama

FILE = "planned.py"
COMMAND = "-m torchtitan.train --module planned --config planned"
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
}
POLICIES = {"none": "", "selective": "SelectiveAC", "full": "FullAC"}
_BASE = Flavor("llama3", "8B", "llama3_8b", "Llama-3.1-8B")


def text(layout: Layout, model: str, gpu: str) -> str:
    """Return the Python module.

    Raises:
        RecipeError: torchtitan cannot express a part of the layout.
    """
    refuse(_refusals(layout))
    flavor = flavor_of(layout.arch)
    whole = layout.micro_batches if layout.pipeline > 1 else 1  # a pipeline takes all micro-batches of a step at once
    shard, replicate = _data(layout)
    return _template().render(
        heading=heading(layout, model, gpu),
        layout=layout,
        arch=layout.arch,
        command=COMMAND,
        flavor=flavor,
        known=flavor or _BASE,
        recompute=POLICIES[layout.recompute],
        schedule=SCHEDULES[layout.schedule],
        stages=[(layers[0], layers[-1] + 1) for layers in layout.stage_layers()],
        local_batch=layout.micro_batch_size * whole,
        global_batch=layout.micro_batch_size * layout.micro_batches * layout.data,
        dtype="bfloat16" if layout.precision == "bf16" else "float32",
        compute_dtype="float32" if layout.precision == "fp32" else "bfloat16",
        shard=shard,
        replicate=replicate,
    )


def _data(layout: Layout) -> tuple[int, int]:
    """Return torchtitan's degrees of sharding and of replication."""
    return (layout.shard, layout.replicate) if layout.zero == "zero3" else (1, layout.data)


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = Path(__file__).parent
    how = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return Environment(loader=FileSystemLoader(folder), undefined=StrictUndefined, **how).get_template(
        "torchtitan.py.jinja"
    )


def _refusals(layout: Layout) -> list[tuple[bool, str]]:
    arch = layout.arch
    inner = _data(layout)[0] * layout.tensor  # the ranks from which torchtitan takes those of the experts
    return [
        other_habits(layout, "torchtitan", ("torchtitan", "pytorch")),
        *never_written(layout),
        graphs(layout),
        (
            layout.zero in ("zero1", "zero2"),
            f"torchtitan has no {layout.zero}: use zero3, with reshard_after_forward False to gather once per step.",
        ),
        (
            not layout.reshard_after_forward and layout.zero != "zero3",
            "reshard_after_forward False needs zero3.",
        ),
        (
            layout.context > 1,
            "torchtitan 0.3 gathers the keys and values of all context ranks, neither in a ring nor all-to-all: "
            "leave context at 1, or use megatron.",
        ),
        (
            inner % layout.expert > 0,
            f"torchtitan takes expert ranks from shard x tensor, which expert {layout.expert} does not divide.",
        ),
        (
            layout.tensor_overlap,
            "torchtitan's asynchronous tensor ranks are experimental and not exported: leave tensor_overlap False.",
        ),
        (layout.attention == "eager", "torchtitan's attention is fused: use attention fused."),
        (layout.precision == "fp16-amp", "torchtitan trains in bf16, fp8 or fp32: use bf16-amp instead of fp16-amp."),
        (
            layout.precision == "fp8" and arch.experts > 0,
            "FP8 experts need torchtitan's MXFP8, which is not planned: use bf16-amp.",
        ),
        (
            layout.recompute_every > 1,
            f"torchtitan recomputes every block, not one in {layout.recompute_every}: use recompute_every 1.",
        ),
        (
            arch.tied and layout.pipeline > 1,
            "torchtitan cannot tie weights across pipeline stages: leave pipeline at 1.",
        ),
        (
            flavor_of(arch) is None and not is_llama(arch),
            "torchtitan has no model of these sizes, and this one is not a Llama: use megatron.",
        ),
    ]
