"""Practice checks of data parallel, and what its lab needs for seeing: pictures, a diary, the flight recorder.

The learner writes a ring all-reduce, the law of what a message costs, buckets that travel during the backward pass, and
the average over ranks with unequal rows.
"""

from ..base import Part
from .joint import JOINT
from .law import LAW
from .overlap import OVERLAP
from .ring import RING

PARTS = (
    Part("data_parallel.ring", ("ring_all_reduce",), RING),
    Part("data_parallel.law", ("fit_link",), LAW),
    Part("data_parallel.overlap", ("BucketedAverage",), OVERLAP),
    Part("data_parallel.average", ("average_gradients",), JOINT),
)
