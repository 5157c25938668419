"""Practice checks of checkpoints, and what their lab needs: real kills, a small training run, published failures.

The learner replays a run with failures and chooses its checkpoint interval, then writes a data order that can resume on
any number of ranks, and a checkpoint manager. No check uses a clock: a failure is a number, and a photograph of the
folder shows what a kill or a power failure would leave (`photographs.py`).
"""

from ..base import Part
from .interval import INTERVAL
from .manager import MANAGER
from .order import ORDER

PARTS = (
    Part("runs_that_survive.interval", ("wall_clock", "best_interval"), INTERVAL),
    Part("runs_that_survive.order", ("DataOrder",), ORDER),
    Part("runs_that_survive.manager", ("Checkpoints",), MANAGER),
)
