"""X4: LoRA, from the layer to a plan for 7B. Ten checks of a point each.

Layers are compared in FP64 with the formula. The plan is judged by the planner, outside of the learner's code. The
fine-tune runs on a small Llama that has learned some English, and is asked for Python source; what was trained, by
which optimizer and in which mode, is recorded by hooks. Chats get their labels under two templates.
"""

from ..base import Part
from .adapter import ADAPTER
from .chats import CHATS, small_chats
from .finetune import FINETUNE
from .layer import LAYER
from .plan import PLAN
from .small_llama import loss_before, small_llama

__all__ = ["PARTS", "prepare", "small_chats", "small_llama"]

PARTS: tuple[Part, ...] = (
    Part("x4.layer", ("LoRALinear",), LAYER),
    Part("x4.adapter", ("adapter_config", "trained_parameters"), ADAPTER),
    Part("x4.plan", ("fine_tune_plan",), PLAN),
    Part("x4.finetune", ("fine_tune", "merged_model"), FINETUNE),
    Part("x4.chats", ("labeled_chats",), CHATS),
)


def prepare(seed: int) -> None:
    """Train the base that all answers are given, and measure it. Probes copy it."""
    loss_before(seed)
