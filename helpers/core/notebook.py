"""What a Jupyter kernel can do and a plain script cannot: show a figure."""

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # matplotlib takes most of a second to import
    from matplotlib.figure import Figure


def to_png(figure: "Figure") -> bytes:
    """Render `figure` as a PNG small enough for a notebook."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80, metadata={"Software": None})  # no version: same bytes each time
    return buffer.getvalue()


def show(figure: "Figure", alt: str) -> None:
    """Show `figure` in a notebook; in a plain script print `alt`, its description."""
    if in_notebook():
        from IPython.display import display

        display({"image/png": to_png(figure), "text/plain": alt}, raw=True, metadata={"image/png": {"alt": alt}})
    else:
        print(f"[figure] {alt}")


def in_notebook() -> bool:
    """Return whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it already
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
