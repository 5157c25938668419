"""Practice checks of runs that survive, and what its lab needs to break jobs: real kills, `torchrun`, diaries of ranks.

The learner replays a run with failures and chooses its checkpoint interval, writes an order of the data that can be
taken up on any number of ranks, a checkpoint manager, and the diagnosis of broken jobs. No check looks at a clock: a
failure is a number, and what a kill would leave behind is a photograph of the folder (`photographs.py`).
"""

from ..base import Part
from .diagnosis import DIAGNOSIS
from .interval import INTERVAL
from .manager import MANAGER
from .order import ORDER

PARTS = (
    Part("runs_that_survive.interval", ("wall_clock", "best_interval"), INTERVAL),
    Part("runs_that_survive.order", ("DataOrder",), ORDER),
    Part("runs_that_survive.manager", ("Checkpoints",), MANAGER),
    Part("runs_that_survive.diagnosis", ("diagnose",), DIAGNOSIS),
)
