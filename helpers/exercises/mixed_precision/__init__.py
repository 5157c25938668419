"""Practice checks of mixed precision: master weights, and an autocast."""

from ..base import Part
from .autocast import AUTOCAST
from .master import MASTER

PARTS = (
    Part("mixed_precision.master", ("sgd_with_master",), MASTER),
    Part("mixed_precision.autocast", ("Autocast",), AUTOCAST),
)
