"""The capstone's ladder as recipes: seven rungs on one model with one batch, each with one change more."""

from typing import Any

from .config import TrainingConfig


def seven_rungs(model: str, batch: int, micro: int, **shared: Any) -> dict[str, tuple[TrainingConfig, int]]:
    """Return, for each rung, its recipe and how many times its step runs in an update.

    SGD with momentum stands for Signum: both keep one number a parameter. Gradients that are folded into it leave as
    soon as they exist, in every micro-batch alike: so from that rung on one micro-batch is the step.

    Args:
        model: a name of the catalog.
        batch, micro: sequences or images in an update, and in a micro-batch; `micro` divides `batch`.
        shared: other arguments of each recipe, such as `seq`.
    """
    pieces = batch // micro
    changes = {
        "0 FP32, AdamW": {"precision": "fp32", "micro_batch_size": batch},
        "1 BF16 autocast": {"precision": "bf16-amp"},
        f"2 {pieces} micro-batches": {"micro_batch_size": micro, "gradient_accumulation_steps": pieces},
        "3 checkpointing": {"checkpointing": "every"},
        "4 one state": {"optimizer": "sgd-momentum"},
        "5 gradients folded": {"gradient_accumulation_steps": 1, "step_in_backward": True},
        "6 BF16 weights": {"precision": "bf16"},
    }
    settings: dict[str, Any] = dict(shared)
    rungs = {}
    for name, change in changes.items():
        settings |= change
        recipe = TrainingConfig(model, **settings)
        rungs[name] = recipe, batch // (recipe.micro_batch_size * recipe.gradient_accumulation_steps)
    return rungs
