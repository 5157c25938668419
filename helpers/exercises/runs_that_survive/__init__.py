"""Practice checks of runs that survive, and what its lab needs to break jobs: real kills, `torchrun`, logs of ranks.

The learner replays a run with failures and chooses its checkpoint interval, then writes a data order that can resume on
any number of ranks, a checkpoint manager, and the diagnosis of broken jobs. No check uses a clock: a failure is a
number, and a photograph of the folder shows what a kill or a power failure would leave (`photographs.py`).
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
