"""Practice checks of a mixture of experts: the layer, grouped matmuls and balancing.

`window_model.py` is the model that the lab trains. `trained.py` trains it and records the experts' loads.
"""

from ..base import Part
from .balance import BALANCE
from .kernel import KERNEL
from .layer import LAYER
from .routing import ROUTING

PARTS = (
    Part("mixture_of_experts.layer", ("route", "permute", "grouped", "unpermute"), ROUTING + LAYER),
    Part("mixture_of_experts.kernel", ("grouped_kernel",), KERNEL),
    Part("mixture_of_experts.balance", ("balance_loss", "nudge", "within_capacity"), BALANCE),
)
