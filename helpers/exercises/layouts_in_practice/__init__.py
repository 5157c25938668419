"""Practice checks of layouts in practice: a decision, and the bill of a run.

`decisions.py` has the questions whose answers the planner judges, and `pictures.py` draws.
"""

from ..base import Part
from .bill import BILL
from .decide import DECIDE

PARTS = (
    Part("layouts_in_practice.decide", ("decide",), DECIDE),
    Part("layouts_in_practice.bill", ("bill",), BILL),
)
