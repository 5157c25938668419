"""Practice checks of adapters in practice: packed chats, exact match, preference training, many adapters."""

from ..base import Part
from .dpo import DPO
from .exact import EXACT
from .packed import PACKED
from .serve import SERVE

PARTS = (
    Part("adapters_in_practice.pack", ("pack",), PACKED),
    Part("adapters_in_practice.exact", ("exactly_right",), EXACT),
    Part("adapters_in_practice.dpo", ("answer_log_probs", "dpo_loss"), DPO),
    Part("adapters_in_practice.serve", ("serve",), SERVE),
)
