"""Practice checks of LoRA: the layer, and a base in NF4."""

from ..base import Part
from .layer import LAYER
from .nf4 import NF4

PARTS = (
    Part("lora.layer", ("LoRA",), LAYER),
    Part("lora.nf4", ("nf4_encode", "nf4_decode"), NF4),
)
