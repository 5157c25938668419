"""Plain PyTorch: layouts with data-parallel ranks as a script of the planner's own, one file to read and change.

The script is that of `planner.script`: DistributedDataParallel, or `fully_shard` over all ranks. It starts with
torchrun, described at https://docs.pytorch.org/docs/stable/elastic/run.html.
"""

from ..catalog.models import find_model
from ..config import ParallelConfig, RecipeError, TrainingConfig
from ..layout.arch import Arch, arch_of_config
from ..layout.layout import Layout
from ..script import training_script
from .refusals import graphs, never_written, other_habits, refuse

FILE = "train.py"
COMMAND = FILE
_EVERY = {1: "every", 2: "every-2", 3: "every-3"}


def text(layout: Layout, model: str) -> str:
    """Return the script.

    Raises:
        RecipeError: no script is written for a part of the layout, or the model is not in the catalog.
    """
    refuse(_refusals(layout))
    found = _arch(model)
    refuse([(found != layout.arch, f"{model} and the planned model differ in size; name the model that was planned.")])
    sharded = layout.zero == "zero3" and layout.shard > 1
    return training_script(
        TrainingConfig(
            model,
            micro_batch_size=layout.micro_batch_size,
            seq=layout.seq,
            precision=layout.precision,
            checkpointing="none" if layout.recompute == "none" else _EVERY[layout.recompute_every],
            gradient_accumulation_steps=layout.micro_batches,
            compile=layout.compile,
            # The script's zero2 is fully_shard that keeps what it gathered.
            parallel=ParallelConfig(shard=layout.ranks, zero=_zero(layout) if sharded else "none"),
        )
    )


def _zero(layout: Layout) -> str:
    return "zero3" if layout.reshard_after_forward else "zero2"


def _arch(model: str) -> Arch:
    config = find_model(model).config
    if config is None:
        raise RecipeError(f"{model} has no Hugging Face config: no script is written for it.")
    return arch_of_config(model, config)


def _refusals(layout: Layout) -> list[tuple[bool, str]]:
    beside = {"tensor": layout.tensor, "pipeline": layout.pipeline, "context": layout.context, "expert": layout.expert}
    others = ", ".join(f"{name} {size}" for name, size in beside.items() if size > 1)
    return [
        *never_written(layout),
        graphs(layout),
        other_habits(layout, "torchrun", ("pytorch", "torchtitan")),
        (bool(others), f"The script supports only data-parallel ranks, not {others}: use torchtitan or megatron."),
        (
            layout.zero in ("zero1", "zero2") and layout.shard > 1,
            f"The script does not support {layout.zero}: use zero3, or deepspeed.",
        ),
        (
            layout.zero == "zero3" and layout.replicate > 1,
            "The script shards over all ranks or none: set shard to all data ranks, or use torchtitan.",
        ),
        (
            not layout.reshard_after_forward and layout.zero != "zero3",
            "reshard_after_forward False needs zero3.",
        ),
        (layout.recompute == "selective", "The script recomputes full blocks: use recompute full or none."),
        (
            layout.recompute_every not in _EVERY,
            f"The script recomputes every block, every second or every third, not one in {layout.recompute_every}.",
        ),
        (
            layout.attention == "eager",
            "Eager attention is planned with dropout, which the script does not support: use attention fused.",
        ),
        (layout.precision == "fp8", "The script does not support fp8: use bf16-amp, or torchtitan."),
        (layout.arch.experts > 0, "No script is written for a mixture of experts: use torchtitan or megatron."),
    ]
