"""Who lives where: a tensor on a pretended GPU has a storage with a home.

The home is an attribute of the storage, which all views share, and dies with it; then the GPU has its bytes back. A
storage without a home is on the CPU. Tensors that PyTorch's own C++ makes in the middle of something, such as the
zeros of a backward pass, come with a device that knows nothing of the pretence: their home is undecided until they
meet a tensor that has one.
"""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from . import memory

_ROWS, _COLUMNS = (torch.sparse_csr, torch.sparse_bsr), (torch.sparse_csc, torch.sparse_bsc)
_PLAIN = (Tensor, torch.nn.Parameter)


def gpu_device(index: int) -> torch.device:
    """Return the device of GPU `index`."""
    return torch.device(memory.machine.kind, index)


def is_gpu(device: torch.device) -> bool:
    """Say whether `device` is one that is pretended."""
    return device.type == memory.machine.kind


def gpu_index(device: torch.device) -> int:
    """Return the index of a GPU; without one, the current GPU's."""
    if device.type == "mps":
        return 0
    torch.cuda._lazy_init()
    return torch.cuda.current_device() if device.index is None else device.index


class Home:
    """The place of one storage.

    Attributes:
        index: of the GPU; None while it is undecided.
        machine: the one that has the GPU. Once it is gone, the storage is the CPU's.
        record: what the machine's watch remembers of it.
    """

    __slots__ = ("_block", "_memory", "address", "index", "machine", "nbytes", "record")

    def __init__(self, storage: torch.UntypedStorage, index: int | None) -> None:
        self.nbytes, self.address = storage.nbytes(), storage.data_ptr()
        self.machine = memory.machine
        self.index: int | None = None
        self._block: Any = None
        self.record: Any = None
        if index is not None:
            self.settle(index)

    def settle(self, index: int) -> None:
        """Move in: the GPU's allocator counts the bytes from now on.

        Raises:
            torch.OutOfMemoryError: they do not fit.
        """
        self._memory = memory.gpu(index)
        self._block = self._memory.allocate(self.address, self.nbytes) if self.nbytes else None
        self.index = index
        if memory.watch is not None and self._block is not None:
            self.record = memory.watch.born(index, self._block.size)

    @staticmethod
    def taken_for_a_moment(nbytes: int, index: int) -> None:
        """Let a kernel take scratch memory of GPU `index`, and give it back.

        Raises:
            torch.OutOfMemoryError: it does not fit.
        """
        block = memory.gpu(index).allocate(0, nbytes)
        if memory.watch is not None:
            memory.watch.died(memory.watch.born(index, block.size))
        memory.gpu(index).release(0, block)

    def leave(self) -> None:
        """Give the bytes back."""
        if self._block is not None:
            self._memory.release(self.address, self._block)
            self._block = None
            if memory.watch is not None and self.record is not None and self.machine is memory.machine:
                memory.watch.died(self.record)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Follow a storage that has grown or shrunk."""
        if storage.nbytes() != self.nbytes:
            self.leave()
            self.nbytes, self.address = storage.nbytes(), storage.data_ptr()
            if self.index is not None:
                self.settle(self.index)

    def __del__(self) -> None:
        try:
            self.leave()
        except (AttributeError, TypeError):  # Python is ending, and half of it has gone
            return


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a plain tensor; None for fake, sparse and other tensors that have none of their own.

    A tensor inside `torch.func.grad` or `vmap` wraps the one that has the storage.
    """
    kind = type(tensor)
    if kind not in _PLAIN and (hasattr(kind, "__tensor_flatten__") or hasattr(kind, "fake_mode")):
        return None
    try:
        if kind in _PLAIN:
            return tensor.untyped_storage()
        with torch._C.DisableTorchFunctionSubclass():  # a subclass hears of what the program calls
            return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        inner = tensor
        while torch._C._functorch.is_functorch_wrapped_tensor(inner):
            inner = torch._C._functorch.get_unwrapped(inner)
        return None if inner is tensor else storage_of(inner)


def home_of_storage(storage: torch.UntypedStorage) -> Home | None:
    """Return the home of a storage on this machine; None on the CPU."""
    home = storage.__dict__.get("home")
    return home if home is None or home.machine is memory.machine else None


def outlived(tensor: Tensor) -> bool:
    """Say whether `tensor` was on a GPU of a machine that is gone."""
    storage = storage_of(tensor)
    return storage is not None and "home" in storage.__dict__ and home_of_storage(storage) is None


def parts(tensor: Tensor) -> list[Tensor]:
    """Return the tensors inside a wrapper such as a DTensor; of a sparse tensor, its indices and values."""
    kind = type(tensor)
    if kind not in _PLAIN and hasattr(kind, "__tensor_flatten__"):
        return [part for name in tensor.__tensor_flatten__()[0] if isinstance(part := getattr(tensor, name), Tensor)]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in _COLUMNS:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def home_of(tensor: Tensor) -> Home | None:
    """Return the home of `tensor`; None on the CPU."""
    storage = storage_of(tensor)
    if storage is not None:
        return home_of_storage(storage)
    return next((home for part in parts(tensor) if (home := home_of(part))), None)


def traced_device(tensor: Tensor) -> torch.device | None:
    """Return the device of a tensor without data, in a graph that is being recorded; None for any other."""
    while isinstance(tensor, FunctionalTensor):
        tensor = torch._from_functional_tensor(tensor.elem)
    return tensor.fake_device if isinstance(tensor, FakeTensor) else None


def index_of(tensor: Tensor) -> int | None:
    """Return the index of the GPU on which `tensor` is; None on the CPU or while it is undecided."""
    home = home_of(tensor)
    if home is not None:
        return home.index
    device = traced_device(tensor)
    return device.index if device is not None and is_gpu(device) else None


def on_gpu(tensor: Tensor) -> bool:
    """Say whether `tensor` is on a GPU, or undecided."""
    return home_of(tensor) is not None or index_of(tensor) is not None


def place(tensor: Tensor, index: int | None) -> Tensor:
    """Give the storage of a new tensor a home, or, with no index, an undecided one; return the tensor."""
    storage = storage_of(tensor)
    if storage is None:
        for part in parts(tensor):
            place(part, index)
    elif (home := home_of_storage(storage)) is None:
        if storage.device.type == "cpu" and _has_address(storage):
            storage.home = Home(storage, index)
    elif index is not None and home.index is None:
        home.settle(index)
    return tensor


def _has_address(storage: torch.UntypedStorage) -> bool:
    """Say whether a storage is memory; those of the wrappers of `torch.func` are not."""
    try:
        storage.data_ptr()
    except RuntimeError:
        return False
    return True
