"""Libraries that load CUDA code of their own when they find a GPU: they are imported as on a machine without one.

Their operators then have kernels for the CPU, and the shapes of their results are known, which is all that a dry run
needs.
"""

from typing import Any

import torch

from .module_hook import ModuleHook


class WithoutGpu(ModuleHook):
    """Loads one package while `torch.cuda.is_available()` says no."""

    def load(self, module: Any) -> None:
        """Load the package."""
        before = torch.cuda.is_available
        torch.cuda.is_available = lambda: False
        try:
            super().load(module)
        finally:
            torch.cuda.is_available = before
