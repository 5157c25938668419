"""X6: a training loop that survives. Nine checks, of a point each but for the gradient's two.

`save` is photographed at each moment at which a kill would leave something new in its folder; another process loads
from the photographs. The ranks of `train` are killed in earnest: they end themselves with SIGKILL at a moment that the
seed has chosen, such as "the 7th forward pass" or "the 3rd change of the folder", so a kill hits the same line on every
machine. The ranks of `preemptible` get real signals, and their seconds are simulated. Nothing is compared within a
tolerance where the contract says "to the last bit".
"""

from ..base import Part
from .files import FILES
from .gradient import GRADIENT
from .preempt import PREEMPTION
from .survive import SURVIVE
from .training import TRAINING

PARTS: tuple[Part, ...] = (
    Part("x6.files", ("save", "load"), FILES),
    Part("x6.gradient", ("gradient",), GRADIENT),
    Part("x6.train", ("train",), TRAINING),
    Part("x6.preempt", ("preemptible",), PREEMPTION),
    Part("x6.survive", ("save", "load", "gradient", "train"), SURVIVE),
)
