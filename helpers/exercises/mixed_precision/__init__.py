"""Practice checks of mixed precision: master weights, an autocast, what comes out of it wide, a Function made safe."""

from ..base import Part
from .autocast import AUTOCAST
from .master import MASTER
from .safe import SAFE
from .widened import WIDENED

PARTS = (
    Part("mixed_precision.master", ("sgd_with_master",), MASTER),
    Part("mixed_precision.autocast", ("Autocast",), AUTOCAST),
    Part("mixed_precision.widened", ("Widened",), WIDENED),
    Part("mixed_precision.safe", ("safe",), SAFE),
)
