"""Memory that the GPU and the host share, as bitsandbytes' paged optimizers take it from CUDA.

CUDA moves its pages where they are wanted. PyTorch's allocator knows nothing of them, so they count for no GPU.
"""

import math
from typing import Any

import torch

from .hollow import make_hollow
from .patches import Patches
from .waits import Waits


def install(patches: Patches, waits: Waits) -> None:
    """Teach bitsandbytes as soon as it is imported."""
    patches.after_import("bitsandbytes.functional", lambda p, module: _functions(p, module, waits))


def _functions(patches: Patches, module: Any, waits: Waits) -> None:
    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        waits.leave_out("paged memory", "in the host's memory, not counted on the GPU")
        paged = make_hollow(torch.empty(math.prod(shape), dtype=dtype).view(shape))
        paged.is_paged, paged.page_deviceid = True, getattr(device, "index", 0) or 0
        return paged

    def nothing(*_: Any, **__: Any) -> None:
        return

    patches.put_all(module, {"get_paged": get_paged, "prefetch_tensor": nothing, "elementwise_func": nothing})
