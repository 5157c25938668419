"""Change a module as soon as it has been imported."""

import sys
from collections.abc import Callable
from typing import Any

from .module_hook import ModuleHook


class AfterImport(ModuleHook):
    """Calls `change(module)` when a module has been loaded; at once if it was already.

    Args:
        name: of the module.
        change: what to do with it.
    """

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        super().__init__(name)
        self._change = change
        if name in sys.modules:
            change(sys.modules[name])
        else:
            sys.meta_path.insert(0, self)

    def load(self, module: Any) -> None:
        """Load the module, and change it."""
        super().load(module)
        self._change(module)
