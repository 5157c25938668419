"""Practice checks of memory profiling: a replay of a log, a reader of snapshots, and a caching allocator."""

from ..base import Part
from .replay import REPLAY
from .small_allocator import SMALL_ALLOCATOR
from .snapshot import SNAPSHOT

PARTS = (
    Part("memory_profiling.replay", ("replay",), REPLAY),
    Part("memory_profiling.snapshot", ("still_there",), SNAPSHOT),
    Part("memory_profiling.allocator", ("SmallAllocator",), SMALL_ALLOCATOR),
)
