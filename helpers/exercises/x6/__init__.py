"""X6: a training loop that survives. Ten checks of a point each.

Real processes are killed: they end themselves with SIGKILL at a moment that the seed has chosen, before a named call or
in the middle of a write, so a kill hits the same line on every machine. What is left on the disk is read by a new
process. Nothing is compared within a tolerance where the contract says "to the last bit".
"""

from ..base import Part
from .files import FILES
from .gradient import GRADIENT
from .survive import SURVIVE
from .training import TRAINING

PARTS: tuple[Part, ...] = (
    Part("x6.files", ("save", "load"), FILES),
    Part("x6.gradient", ("gradient",), GRADIENT),
    Part("x6.train", ("train",), TRAINING),
    Part("x6.survive", ("save", "load", "gradient", "train"), SURVIVE),
)
