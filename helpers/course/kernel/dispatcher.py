"""See what an answer has changed below Python, where PyTorch chooses the kernel of an operation.

A *mode* that somebody entered and never left sees every operation after it; a library can give an operation of `aten`
another kernel. Neither is a name in a module, so `Guard` cannot see it.
"""

import torch
from torch.overrides import _pop_mode as pop_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode

# Keys that decide what a check computes. Others (of fake tensors, say) get their kernels when they are first used.
_KEYS = ("CPU", "CUDA", "MPS", "Autograd", "ADInplaceOrView", "BackendSelect", "Composite", "Python")


class Dispatcher:
    """The kernels of all operations of `aten` as they are now."""

    def __init__(self) -> None:
        names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
        self._kernels = {name: torch._C._dispatch_dump(name) for name in names}

    def other_kernels(self) -> list[str]:
        """Return the operations whose kernels have been replaced. They cannot be restored."""
        now = {name: torch._C._dispatch_dump(name) for name in self._kernels}
        other = [name for name, text in now.items() if text != self._kernels[name]]
        return [f"the kernel of {name}" for name in other if _real(now[name]) != _real(self._kernels[name])]


def leave_modes() -> list[str]:
    """Leave all modes that are on; return what they were."""
    left = []
    while torch._C._len_torch_function_stack():
        left.append(f"operations by a mode ({type(pop_function_mode()).__name__})")
    while torch._C._len_torch_dispatch_stack():
        mode = _get_current_dispatch_mode()  # held: else PyTorch 2.9 frees it as it is popped
        pop_dispatch_mode()
        left.append(f"operations by a mode ({type(mode).__name__})")
    return left


def _real(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(_KEYS)]
