"""Practice checks of mixed precision: master weights, an autocast, a loss scaler."""

from ..base import Part
from .autocast import AUTOCAST
from .master import MASTER
from .scaler import SCALER

PARTS = (
    Part("mixed_precision.master", ("sgd_with_master",), MASTER),
    Part("mixed_precision.autocast", ("Autocast",), AUTOCAST),
    Part("mixed_precision.scaler", ("LossScaler",), SCALER),
)
