"""Logarithmic axes with plain numbers: 64, 128 and 256 rather than powers of two."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST = 1e5  # from one end of an axis to the other; beyond it powers are shorter
FEWEST = 3  # numbers that make a scale readable


def plain_numbers(figure: "Figure") -> None:
    """Number the logarithmic axes of `figure` plainly, and densely enough where less than a decade or two is shown.

    Axes whose ticks were set by hand, and those that span many decades, stay as they are.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            logarithmic = axis.get_scale() == "log" and isinstance(axis.get_major_locator(), LogLocator)
            if not logarithmic or not 0 < low < high <= WIDEST * low:
                continue
            for between in ((2.0, 5.0), tuple(float(n) for n in range(2, 10))):
                if sum(low <= tick <= high for tick in axis.get_major_locator()()) < FEWEST:
                    axis.set_major_locator(LogLocator(base=10, subs=(1.0, *between)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
            axis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """Return a number as people write it: no power, no trailing zero."""
    return f"{value:,.0f}" if value >= 1 and abs(value - round(value)) < 1e-6 * value else f"{value:.4g}"
