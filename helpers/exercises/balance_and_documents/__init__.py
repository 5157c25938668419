"""Practice checks of long sequences in training: a fair order with its labels and positions, and an all-to-all.

`clock.py` clocks ranks that run the ring attention of the lab before, `pictures.py` draws what they compute and when.
"""

from ..base import Part
from .cut import CUT
from .exchange import EXCHANGE

PARTS = (
    Part("balance_and_documents.cut", ("zigzag", "cut"), CUT),
    Part("balance_and_documents.exchange", ("exchange",), EXCHANGE),
)
