"""A GPU of which only the addresses exist, to write an allocator for."""

from ...core.units import human_bytes
from ...planner.allocator import OutOfMemory


class PretendGPU:
    """Hands out segments of memory as `cudaMalloc` does, with no memory behind them.

    Args:
        capacity: bytes of the GPU; None for no limit.

    Attributes:
        segments: the bytes of each segment in use, by its address.
        calls: what was asked, in order: ("malloc" or "refused" or "free", bytes).
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.segments: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self._next = 1 << 32

    def malloc(self, nbytes: int) -> int:
        """Return the address of a new segment. It may begin where another one ends.

        Raises:
            OutOfMemory: the segments together would exceed `capacity`.
        """
        if self.capacity is not None and sum(self.segments.values()) + nbytes > self.capacity:
            self.calls.append(("refused", nbytes))
            raise OutOfMemory(f"a segment of {human_bytes(nbytes)} is not free on this GPU")
        address, self._next = self._next, self._next + nbytes
        self.segments[address] = nbytes
        self.calls.append(("malloc", nbytes))
        return address

    def free(self, address: int) -> None:
        """Take back a whole segment.

        Raises:
            ValueError: no segment in use begins at `address`.
        """
        if address not in self.segments:
            raise ValueError(f"gpu.free({address}): no segment in use begins there")
        self.calls.append(("free", self.segments.pop(address)))
