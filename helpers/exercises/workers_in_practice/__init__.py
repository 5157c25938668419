"""Practice checks of workers in practice: a loader that keeps a device fed, and a batch in one call."""

from ..base import Part
from .batches import BATCHES
from .loader import LOADER

PARTS = (
    Part("workers_in_practice.loader", ("make_loader",), LOADER),
    Part("workers_in_practice.batches", ("finished_batch",), BATCHES),
)
