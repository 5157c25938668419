"""Practice checks of LoRA: the layer, packed chats with a loss on answers only, exact match, NF4, many adapters."""

from ..base import Part
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
    Part("lora.serve", ("serve",), SERVE),
)
