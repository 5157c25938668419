"""Practice check of data loading: a prefetcher.

Threads that wait are told by what was drawn, not by the clock.
"""

from ..base import Part
from .prefetch import PREFETCH

PARTS = (Part("data_loading.prefetch", ("prefetched",), PREFETCH),)
