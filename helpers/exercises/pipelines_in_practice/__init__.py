"""Practice checks of what real pipelines need: a schedule whose weight gradients wait, and tied ends."""

from ..base import Part
from .tied import TIED
from .zero_bubble import ZERO_BUBBLE

PARTS = (
    Part("pipelines_in_practice.zero_bubble", ("zero_bubble",), ZERO_BUBBLE),
    Part("pipelines_in_practice.tied", ("finish_step",), TIED),
)
