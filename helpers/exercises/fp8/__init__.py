"""Practice checks of FP8: casts, delayed scaling, the matmuls of a backward pass, and MXFP8's blocks."""

from ..base import Part
from .backward import BACKWARD
from .casts import QUANTIZE, SCALE
from .delayed import DELAYED
from .mx import MX
from .products import PRODUCTS

PARTS = (
    Part("fp8.quantize", ("quantize",), QUANTIZE),
    Part("fp8.scale", ("current_scale",), SCALE),
    Part("fp8.delayed", ("delayed_scale",), DELAYED),
    Part("fp8.products", ("gradient_of_x", "gradient_of_w"), PRODUCTS),
    Part("fp8.backward", ("Float8Product",), BACKWARD),
    Part("fp8.mx", ("mx_quantize",), MX),
)
