"""Practice checks of FP8 numbers and their scales: casts, delayed scaling, and MXFP8's blocks."""

from ..base import Part
from .casts import QUANTIZE, SCALE
from .delayed import DELAYED
from .mx import MX

PARTS = (
    Part("fp8.quantize", ("quantize",), QUANTIZE),
    Part("fp8.scale", ("current_scale",), SCALE),
    Part("fp8.delayed", ("delayed_scale",), DELAYED),
    Part("fp8.mx", ("mx_quantize",), MX),
)
