"""Practice checks of LoRA: the layer, packed chats, exact match, NF4, preference training, many adapters."""

from ..base import Part
from .dpo import DPO
from .exact import EXACT
from .layer import LAYER
from .nf4 import NF4
from .packed import PACKED
from .serve import SERVE

PARTS = (
    Part("lora.layer", ("LoRA",), LAYER),
    Part("lora.pack", ("pack",), PACKED),
    Part("lora.exact", ("exactly_right",), EXACT),
    Part("lora.nf4", ("nf4_encode", "nf4_decode"), NF4),
    Part("lora.dpo", ("answer_log_probs", "dpo_loss"), DPO),
    Part("lora.serve", ("serve",), SERVE),
)
