"""Practice checks of data parallel, and what its lab shows: pictures, a log of buckets, `torchrun`.

The learner writes a ring all-reduce, the formula for what a message costs, and buckets that travel during the backward
pass.
"""

from ..base import Part
from .link import LINK
from .overlap import OVERLAP
from .ring import RING

PARTS = (
    Part("data_parallel.ring", ("ring_all_reduce",), RING),
    Part("data_parallel.link", ("fit_link",), LINK),
    Part("data_parallel.overlap", ("BucketedAverage",), OVERLAP),
)
