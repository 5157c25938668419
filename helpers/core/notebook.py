"""What a Jupyter kernel can do and a plain script cannot: show a figure, or text in colors."""

import io
import sys
from typing import TYPE_CHECKING, Protocol

from .log_axes import plain_numbers

if TYPE_CHECKING:  # matplotlib takes most of a second to import
    from matplotlib.figure import Figure


_DPI = 80  # pixels of a page to the inch of a figure


def to_png(figure: "Figure") -> bytes:
    """Render `figure` with twice the pixels that it takes on a page, in 256 colors: sharp, and half of the bytes."""
    from PIL import Image

    plain_numbers(figure)
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=2 * _DPI)
    image = Image.open(drawn).convert("RGB")
    image = image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(small, "png", optimize=True)  # no date and no version: the same bytes each time
    return small.getvalue()


def size_on_page(figure: "Figure") -> dict[str, int]:
    """Return the width and height at which `figure` is shown, in pixels of a page."""
    width, height = figure.get_size_inches() * _DPI
    return {"width": round(width), "height": round(height)}


def show(figure: "Figure", alt: str) -> None:
    """Show `figure` in a notebook; in a plain script print `alt`, its description."""
    if in_notebook():
        from IPython.display import display

        data = {"image/png": to_png(figure), "text/plain": alt}
        display(data, raw=True, metadata={"image/png": {"alt": alt, **size_on_page(figure)}})
    else:
        print(f"[figure] {alt}")


class Report(Protocol):
    """A text that is HTML, too."""

    def _repr_html_(self) -> str: ...


def show_report(report: Report) -> None:
    """Show `report` as HTML in a notebook, with its text for readers that have no HTML; in a plain script print it."""
    if in_notebook():
        from IPython.display import display

        display({"text/html": report._repr_html_(), "text/plain": str(report)}, raw=True)
    else:
        print(report)


def in_notebook() -> bool:
    """Return whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it already
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
