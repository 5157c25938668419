"""Practice checks of expert parallelism: the exchange of rows, the layer on many ranks, and the mean of gradients.

`parcels.py` records what leaves a rank, and for which rank. `one_loop.py` is the layer in one process, which the checks
compare with.
"""

from ..base import Part
from .exchange import EXCHANGE
from .gradients import GRADIENTS
from .layer import LAYER

PARTS = (
    Part("expert_parallel.exchange", ("Exchange",), EXCHANGE),
    Part("expert_parallel.layer", ("expert_parallel",), LAYER),
    Part("expert_parallel.gradients", ("average_gradients",), GRADIENTS),
)
