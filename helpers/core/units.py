"""Bytes and rates in units that people can compare.

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


def human_flops(rate: float) -> str:
    """Write a rate in FLOP/s with the largest unit that keeps a digit before the point. Rates count in powers of 1000.

    >>> human_flops(312e12)
    '312 TFLOP/s'
    """
    size, unit = (1e12, "TFLOP/s") if rate >= 1e12 else (1e9, "GFLOP/s")
    return f"{rate / size:.3g} {unit}"


def with_unit(figure: str, unit: str) -> str:
    """Write `figure` with its unit; a percent sign and the x of a factor take no space.

    >>> with_unit("2.5", "ms"), with_unit("12", "% of FP32's"), with_unit("3", ""), with_unit("2", "times")
    ('2.5 ms', "12% of FP32's", '3', '2x')
    """
    unit = "x" if unit == "times" else unit
    return figure + unit if unit.startswith("%") or unit.partition(" ")[0] == "x" else f"{figure} {unit}".rstrip()


def unit_of_distance(unit: str) -> str:
    """Return the unit in which two figures in `unit` differ: percentages by points, 2 of 4 and 3 of 4 by a plain 1.

    >>> unit_of_distance("% of FP32's"), unit_of_distance("of 4"), unit_of_distance("ms")
    ('points', '', 'ms')
    """
    if unit.startswith("%"):
        return "points"
    return "" if unit.startswith(("of ", "(")) else unit
