"""What is replaced in PyTorch, and put back when the virtual GPU goes."""

from collections.abc import Callable
from typing import Any

from .after_import import AfterImport

_ABSENT = object()


class Patches:
    """Replacements of attributes, of which each remembers what was there before."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module, a class or an object."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

        def back() -> None:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(back)

    def put_all(self, owner: Any, values: dict[str, Any]) -> None:
        """Set several attributes of one owner."""
        for name, value in values.items():
            self.put(owner, name, value)

    def later(self, undo: Callable[[], object]) -> None:
        """Call `undo` when everything is put back."""
        self._undo.append(undo)

    def after_import(self, module: str, change: Callable[["Patches", Any], None]) -> None:
        """Call `change(self, module)` as soon as a module has been imported; at once if it was already."""
        self._undo.append(AfterImport(module, lambda loaded: change(self, loaded)).forget)

    def undo(self) -> None:
        """Put everything back, the last replacement first."""
        while self._undo:
            self._undo.pop()()
