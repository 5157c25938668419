"""DeepSpeed: data-parallel layouts (ZeRO stage 0 to 3) as the JSON that `deepspeed.initialize(config=...)` reads.

Keys as in https://www.deepspeed.ai/docs/config-json/. The JSON cannot say what the training script does with the model:
which it is, how long its sequences are, how it attends, whether it recomputes and compiles. That stands under
`for_your_script`, which DeepSpeed skips.
"""

import json

from ..layout.layout import Layout
from .refusals import graphs, never_written, refuse

FILE = "ds_config.json"
COMMAND = f"train.py --deepspeed {FILE}"
STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
AUTOCAST = {"bf16-amp": "bfloat16", "fp16-amp": "float16"}
CLIP = 1.0  # as planned


def text(layout: Layout, model: str) -> str:
    """Return the JSON.

    Raises:
        RecipeError: DeepSpeed cannot express a part of the layout.
    """
    from ...ranks.deepspeed_config import deepspeed_config  # its room imports PyTorch, which takes seconds

    refuse(_refusals(layout))
    masters = {"bf16-amp": "bf16", "fp16-amp": "fp16"}.get(layout.precision, "fp32")
    own_masters = layout.engine == "megatron"  # 16-bit weights beside FP32 ones; else FP32 weights under autocast
    config = deepspeed_config(
        STAGES[layout.zero],
        layout.micro_batch_size,
        layout.micro_batches,
        precision=masters if own_masters else "fp32",
        clip=CLIP,
    )
    config["train_batch_size"] = layout.micro_batch_size * layout.micro_batches * layout.data
    if layout.precision in AUTOCAST and not own_masters:
        config["torch_autocast"] = {"enabled": True, "dtype": AUTOCAST[layout.precision]}
    config["for_your_script"] = {
        "model": model,
        "parameters": layout.arch.count(),
        "seq": layout.seq,
        "recompute": layout.recompute,
        "recompute_every": layout.recompute_every,
        "attention": layout.attention,
        "compile": layout.compile,
    }
    return json.dumps(config, indent=2) + "\n"


def _refusals(layout: Layout) -> list[tuple[bool, str]]:
    beside = {"tensor": layout.tensor, "pipeline": layout.pipeline, "context": layout.context, "expert": layout.expert}
    others = ", ".join(f"{name} {size}" for name, size in beside.items() if size > 1)
    return [
        *never_written(layout),
        graphs(layout),
        (bool(others), f"DeepSpeed's JSON has only data-parallel ranks, not {others}: use torchtitan or megatron."),
        (
            layout.replicate > 1 and layout.shard > 1 and layout.zero != "none",
            "DeepSpeed's ZeRO shards over all ranks: set shard to all data ranks.",
        ),
        (
            layout.replicate > 1 and layout.shard == 1 and layout.zero != "none",
            f"DeepSpeed's {layout.zero} shards over all ranks: these are replicas, so use zero none.",
        ),
        (
            not layout.reshard_after_forward,
            "DeepSpeed frees gathered parameters between forward and backward: leave reshard_after_forward at True.",
        ),
        (layout.precision == "fp8", "DeepSpeed's JSON has no fp8: use bf16-amp."),
        (
            layout.precision == "bf16",
            "DeepSpeed keeps FP32 weights for the optimizer: use bf16-amp instead of bf16.",
        ),
    ]
