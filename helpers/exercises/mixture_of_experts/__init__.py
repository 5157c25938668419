"""Practice checks of a mixture of experts: the layer, grouped matmuls, balancing, the exchange, and gradients.

`window_model.py` is the model that the lab trains. `trained.py` trains it and records the experts' loads. `parcels.py`
records what leaves a rank, and for which rank.
"""

from ..base import Part
from .balance import BALANCE
from .exchange import EXCHANGE
from .kernel import KERNEL
from .layer import LAYER
from .parallel import PARALLEL
from .reduce import REDUCE
from .routing import ROUTING

PARTS = (
    Part("mixture_of_experts.layer", ("route", "permute", "grouped", "unpermute"), ROUTING + LAYER),
    Part("mixture_of_experts.kernel", ("grouped_kernel",), KERNEL),
    Part("mixture_of_experts.balance", ("balance_loss", "nudge", "within_capacity"), BALANCE),
    Part("mixture_of_experts.parallel", ("Exchange", "expert_parallel"), EXCHANGE + PARALLEL),
    Part("mixture_of_experts.reduce", ("average_gradients",), REDUCE),
)
