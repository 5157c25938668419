"""Libraries that load CUDA code of their own when they find a GPU: they are imported as on a machine without one.

Their operators then have kernels for the CPU, and the shapes of their results are known, which is all that a dry run
needs.
"""

import importlib.abc
import importlib.machinery
import sys
from typing import Any

import torch


class WithoutGpu(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one package while `torch.cuda.is_available()` says no.

    Args:
        name: of the package.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Take the place of the package's loader."""
        if name != self._name:
            return None
        self.forget()
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def forget(self) -> None:
        """Stop waiting for the package."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def create_module(self, spec: Any) -> Any:
        """Let the package's own loader do it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Load the package."""
        module.__spec__.loader = module.__loader__ = self._loader
        before = torch.cuda.is_available
        torch.cuda.is_available = lambda: False
        try:
            self._loader.exec_module(module)
        finally:
            torch.cuda.is_available = before
