"""Practice checks of a mixture of experts: one layer, its balance, the exchange over ranks, whose gradients meet where.

`window_model.py` is the model that the lab trains, `trained.py` trains it and watches the experts' loads, `parcels.py`
says what left a rank, and for whom.
"""

from ..base import Part
from .balance import BALANCE
from .exchange import EXCHANGE
from .layer import LAYER
from .parallel import PARALLEL
from .reduce import REDUCE
from .routing import ROUTING

PARTS = (
    Part("mixture_of_experts.layer", ("route", "permute", "grouped", "unpermute"), ROUTING + LAYER),
    Part("mixture_of_experts.balance", ("balance_loss", "nudge", "within_capacity"), BALANCE),
    Part("mixture_of_experts.parallel", ("Exchange", "expert_parallel"), EXCHANGE + PARALLEL),
    Part("mixture_of_experts.reduce", ("average_gradients",), REDUCE),
)
