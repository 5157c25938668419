"""Virtual GPUs on a machine that has a real one: in a process of their own, which sees no other GPU."""

import os
from collections.abc import Callable
from typing import Any

import torch

from . import install
from .user_line import cells, name_cells

_LIMIT = 600.0  # seconds that a dry run of a lab may take


def beside_real_gpu(fn: Callable[..., Any], *args: Any) -> Any:
    """Return `fn(*args)`, which uses `virtual_gpu`. It may be defined in a cell.

    If this machine has a real GPU, a process that does not see it calls `fn`, and its result comes back: numbers, for
    example, or the record of a virtual GPU. Otherwise this is a plain call.
    """
    if not torch.cuda.is_available() and not install.installed():  # Apple's GPU may be pretended, in a test
        return fn(*args)
    from ..ranks.run import run_ranks

    how = {"device": "cpu", "measure": False, "process_group": False, "show": False}
    return run_ranks(_unseen, 1, cells(), fn, args, timeout=_LIMIT, **how).results[0]


def _unseen(names: dict[str, str], fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `fn` in a process in which CUDA has started without GPUs, so that the variable can go."""
    if install.installed():  # the real GPU is itself pretended, in a test
        install.uninstall()
    if torch.backends.cuda.is_built():
        torch._C._cuda_getDeviceCount()
    name_cells(names)
    del os.environ["CUDA_VISIBLE_DEVICES"]  # virtual GPUs heed it as well
    return fn(*args)
