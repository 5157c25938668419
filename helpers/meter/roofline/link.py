"""A link: what a message costs, by its size."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes `latency` + n / `bandwidth` seconds; in articles: alpha + n / beta.

    Attributes:
        latency: seconds that the smallest message takes.
        bandwidth: bytes/s that the largest ones reach.
        misfit: how far the law was from the message it missed by most; 0.2 is 20 %. 0 where nothing was measured.
    """

    latency: float
    bandwidth: float
    misfit: float = 0.0

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of a message of `nbytes` bytes."""
        return self.latency + nbytes / self.bandwidth

    @classmethod
    def fitted(cls, sweep: Sequence[tuple[int, float]]) -> "Link":
        """Return the link that fits measured messages, (bytes, seconds), of at least two sizes.

        Least squares of the relative errors: in seconds, the largest message alone would decide. Where noise would make
        one of the two negative, the smallest message gives the latency, and the largest one the bandwidth.
        """
        # a + b n = t, each equation divided by its t: a x + b y = 1 with x = 1 / t and y = n / t
        rows = [(1 / seconds, nbytes / seconds) for nbytes, seconds in sweep]
        xx, xy, yy = (
            sum(a * b for a, b in pairs)
            for pairs in ([(x, x) for x, _ in rows], [(x, y) for x, y in rows], [(y, y) for _, y in rows])
        )
        sx, sy = (sum(column) for column in zip(*rows, strict=True))
        determinant = xx * yy - xy * xy
        latency, slope = (sx * yy - sy * xy) / determinant, (sy * xx - sx * xy) / determinant
        if latency <= 0 or slope <= 0:
            (_, latency), (nbytes, seconds) = min(sweep), max(sweep)
            slope = seconds / nbytes
        line = cls(latency, 1 / slope)
        return cls(latency, 1 / slope, max(abs(line.seconds(nbytes) / seconds - 1) for nbytes, seconds in sweep))
