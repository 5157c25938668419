"""Practice checks of choosing a layout: the grid of ranks and its traffic, and formulas that search.

`ring.py` has the bandwidth of a ring, `candidates.py` the layouts to choose from, and `pictures.py` draws.
"""

from ..base import Part
from .grid import GRID
from .laws import LAWS
from .traffic import TRAFFIC

PARTS = (
    Part("choosing_a_layout.grid", ("groups", "sent"), GRID + TRAFFIC),
    Part("choosing_a_layout.laws", ("memory", "seconds", "best"), LAWS),
)
