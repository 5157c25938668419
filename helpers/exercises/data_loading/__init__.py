"""Practice checks of data loading: a prefetcher, and a fast loader.

Threads and workers that wait are told by what was drawn and read, not by the clock. Where a clock decides, the waits
are sleeps, which no luck shortens, and of several epochs the best one counts, so that a busy machine does no harm.
"""

from ..base import Part
from .loader import LOADER
from .prefetch import PREFETCH

PARTS = (
    Part("data_loading.prefetch", ("prefetched",), PREFETCH),
    Part("data_loading.loader", ("make_loader",), LOADER),
)
