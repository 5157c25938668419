"""DeepSpeed's configuration, in the words of this course.

DeepSpeed reads a dictionary of about a hundred keys. These few determine how much memory it needs. Two of its
defaults are surprising: since June 2026 (pull request 8068) it clips gradients to norm 1, and it checks the effective
batch against micro-batch x accumulation x ranks.
"""

from typing import Any

import torch

STAGES = (0, 1, 2, 3)
PRECISIONS = ("fp32", "bf16", "fp16")
OFFLOADS = ("none", "optimizer", "all")


def deepspeed_config(
    stage: int,
    micro_batch: int,
    accumulate: int = 1,
    precision: str = "fp32",
    offload: str = "none",
    learning_rate: float = 1e-3,
    clip: float = 0.0,
) -> dict[str, Any]:
    """Return the configuration for `deepspeed.initialize(config=...)`.

    Args:
        stage: 0 (replicated, as DDP), 1 (optimizer state sharded), 2 (and gradients), 3 (and parameters).
        micro_batch: rows of one rank in one forward pass.
        accumulate: micro-batches in one update.
        precision: "bf16" and "fp16" keep FP32 master weights in the optimizer.
        offload: what the host's memory holds: nothing, the optimizer, or (stage 3) the parameters as well.
        learning_rate: of AdamW.
        clip: largest norm of the gradient; 0 turns clipping off. DeepSpeed's own default is 1 (0 before June 2026).

    Raises:
        ValueError: an unknown value, or values that do not go together.
    """
    for name, value, known in (
        ("stage", stage, STAGES),
        ("precision", precision, PRECISIONS),
        ("offload", offload, OFFLOADS),
    ):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(str, known))}.")
    if micro_batch < 1 or accumulate < 1:
        raise ValueError(f"micro_batch is {micro_batch} and accumulate {accumulate}; both must be at least 1.")
    if offload == "optimizer" and stage == 0:
        raise ValueError("Offloading the optimizer needs stage 1 or higher.")
    if offload == "all" and stage != 3:
        raise ValueError("Offloading the parameters needs stage 3.")
    host = {"device": "cpu", "pin_memory": torch.cuda.is_available()}  # pinned copies overlap with computing
    zero: dict[str, Any] = {"stage": stage}
    if offload != "none":
        zero["offload_optimizer"] = dict(host)
    if offload == "all":
        zero["offload_param"] = dict(host)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": clip,
        # An offloaded optimizer runs on the CPU, for which DeepSpeed compiles its own Adam.
        "optimizer": {"type": "AdamW", "params": {"lr": learning_rate, "torch_adam": offload == "none"}},
        "zero_optimization": zero,
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return config
