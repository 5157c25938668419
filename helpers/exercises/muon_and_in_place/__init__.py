"""Practice checks of Muon and of in-place operations: Newton-Schulz, Muon's step, an activation in place."""

from ..base import Part
from .hardtanh import HARDTANH
from .muon import MUON
from .newton import NEWTON

PARTS = (
    Part("muon_and_in_place.newton", ("orthogonalize",), NEWTON),
    Part("muon_and_in_place.muon", ("Muon",), MUON),
    Part("muon_and_in_place.hardtanh", ("HardtanhInPlace",), HARDTANH),
)
