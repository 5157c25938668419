"""Bytes in units that people can compare.

GiB, MiB and KiB are powers of 1024; GB is a power of 1000. A GPU sold as "24 GB" holds about 24 GiB,
while papers count parameters in GB: 7e9 parameters x 4 bytes = 28 GB = 26.1 GiB. Every figure in
this course carries its unit for that reason.
"""

KiB, MiB, GiB = 2**10, 2**20, 2**30


def human_bytes(n: float) -> str:
    """Write `n` bytes with the largest binary unit that keeps at least one digit before the point.

    >>> human_bytes(3_670_016)
    '3.50 MiB'
    """
    for size, unit in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if abs(n) >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n:.0f} B"
