"""Practice checks of choosing a layout: the grid of ranks and its traffic, laws that search, a decision, its bill.

`grid.py` trains on a grid of pipeline x data x tensor ranks, `decisions.py` has the questions whose answers
the planner judges, `pictures.py` draws.
"""

from ..base import Part
from .bill import BILL
from .decide import DECIDE
from .grid import GRID
from .laws import LAWS
from .traffic import TRAFFIC

PARTS = (
    Part("choosing_a_layout.grid", ("groups", "sent"), GRID + TRAFFIC),
    Part("choosing_a_layout.laws", ("memory", "seconds", "best"), LAWS),
    Part("choosing_a_layout.decide", ("decide",), DECIDE),
    Part("choosing_a_layout.bill", ("bill",), BILL),
)
