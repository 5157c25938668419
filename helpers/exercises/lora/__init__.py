"""Practice checks of LoRA: the layer, packed chats with a loss on answers only, NF4, many adapters on one base."""

from ..base import Part
from .layer import LAYER
from .nf4 import NF4
from .packed import PACKED
from .serve import SERVE

PARTS = (
    Part("lora.layer", ("LoRA",), LAYER),
    Part("lora.pack", ("pack",), PACKED),
    Part("lora.nf4", ("nf4_encode", "nf4_decode"), NF4),
    Part("lora.serve", ("serve",), SERVE),
)
