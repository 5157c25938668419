"""Practice checks of training in FP8: the matmuls of a backward pass, and the backward pass that calls them."""

from ..base import Part
from .backward import BACKWARD
from .products import PRODUCTS

PARTS = (
    Part("training_in_fp8.products", ("gradient_of_x", "gradient_of_w"), PRODUCTS),
    Part("training_in_fp8.backward", ("Float8Product",), BACKWARD),
)
