"""What ranks print, shown by the notebook."""

from collections.abc import Sequence

from ..core.notebook import in_notebook
from .rank import Rank


class Screen:
    """Shows what ranks print: in a notebook live, the last line of each; at the end all lines in rank order."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks, self._handle, self._text = ranks, None, ""

    def update(self) -> None:
        """Show the last line of each rank."""
        if in_notebook() and any(rank.lines for rank in self._ranks):
            self._show("\n".join(f"[rank {r.number}] {r.lines[-1] if r.lines else '...'}" for r in self._ranks))

    def finish(self) -> None:
        """Show all lines."""
        text = "\n".join(f"[rank {rank.number}] {line}" for rank in self._ranks for line in rank.lines)
        if text and in_notebook():
            self._show(text)
        elif text:
            print(text)

    def _show(self, text: str) -> None:
        if text == self._text:
            return
        from IPython.display import display

        data, self._text = {"text/plain": text}, text
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
