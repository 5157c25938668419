"""The rates of your own machine: tables that were measured there, in place of published ones."""

from .measured import Measured
from .read import RatesFile, read_rates

__all__ = ["Measured", "RatesFile", "read_rates"]
