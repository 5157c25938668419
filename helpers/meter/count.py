"""A count of tensor memory: which storages are alive, since when, and whose they are.

A `TorchDispatchMode` sees every operation on tensors. Each new storage behind an output becomes a `Block`; a weak
reference tells when it is let go. Hooks of autograd, of the modules and of the optimizers say what the block is for.

Two instruments stand on this count. The meter (`memory.py`) joins it with the allocator's log of a real step; the
planner (`planner/`) counts a step on fake tensors, which have sizes and no memory.
"""

import bisect
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

TENANTS = (
    "parameters",
    "gradients",
    "optimizer state",
    "weight copies",  # 16-bit casts of the parameters that autocast makes and keeps
    "activations",  # saved for the backward pass
    "recomputed activations",  # made again in the backward pass by activation checkpointing
    "temporaries",
    "kernel workspace",
    "inputs and other",
)

_DETACH = torch.ops.aten.detach.default
_TO_COPY = torch.ops.aten._to_copy.default
_DEVICE = torch.ops.prim.device.default  # asks a fake tensor where it is; frequent, and touches no memory


class Op(NamedTuple):
    """One operation: when it began, in which phase of the step, its name, and the module it worked for."""

    when: int
    phase: str
    name: str
    module: str

    def __str__(self) -> str:
        return f"{self.phase}: {self.name}" + (f" in {self.module}" if self.module else "")


NO_OP = Op(0, "before", "made earlier", "")


@dataclass(slots=True, eq=False)
class Block:
    """One stretch of memory behind tensors: a storage, from when it was first seen to its end."""

    address: int
    nbytes: int
    tenant: str
    seen: int
    op: Op
    died: int | None = None
    recomputed: bool = False


def _flat(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments or results of an operation, which nest them in lists at most."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)


@functools.cache
def _name(func: Any) -> str:
    return str(func)  # slow enough to be worth remembering


def _parts_of_sparse(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that a sparse one consists of."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return ()


def _inner_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors with memory of their own: of a wrapper, such as torchao's 4-bit state, what it wraps."""
    names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
    if not names:
        yield tensor
    for name in names:
        yield from _inner_tensors(getattr(tensor, name))


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the tensors an optimizer keeps."""
    for state in optimizer.state.values():
        for value in state.values():
            for tensor in _flat(value.values() if isinstance(value, dict) else (value,)):
                yield from _inner_tensors(tensor)


class Count(TorchDispatchMode):
    """Keeps a block for each storage that any operation touches, without keeping the storage alive.

    Args:
        device_type: storages on other devices are not counted.
        clock: gives the time of an event; must never run backwards.
        address: gives a number that two storages share only if they share memory.
    """

    def __init__(
        self, device_type: str, clock: Callable[[], int], address: Callable[[torch.UntypedStorage], int]
    ) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.ops: list[Op] = []
        self.stepping: set[int] = set()  # ids of the optimizers that are stepping
        self._type, self._clock, self._address = device_type, clock, address
        self._live: dict[int, Block] = {}
        self._finalizers: list[weakref.finalize] = []
        self._modules: list[str] = []
        self._module_of_node: dict[int, str] = {}  # autograd's sequence number -> the module that was running
        self._op = NO_OP
        self._recomputing = False

    # -- whose

    def see(self, tensor: object, tenant: str | None = None) -> Block | None:
        """Find or make the block of `tensor`; a `tenant` given is written on it."""
        if not isinstance(tensor, Tensor) or tensor.device.type != self._type:
            return None
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, what this rank holds
        if tensor.layout is not torch.strided:
            for part in _parts_of_sparse(tensor):
                self.see(part, tenant)
            return None
        try:
            storage = tensor.untyped_storage()
            address = self._address(storage)
        except (NotImplementedError, RuntimeError, ValueError):  # wrappers and lazy parameters have none
            return None
        if not address:
            return None
        return self.see_storage(storage, address, tenant)

    def see_storage(self, storage: torch.UntypedStorage, address: int, tenant: str | None = None) -> Block:
        """Find or make the block of `storage`, which lies at `address`."""
        key = storage._cdata
        block = self._live.get(key)
        if block is None or block.address != address or block.nbytes != storage.nbytes():
            if block is None:
                self._finalizers.append(weakref.finalize(storage, self._end, key))
            else:  # resized
                block.died = self._clock()
                tenant = tenant or block.tenant
            block = Block(address, storage.nbytes(), tenant or "temporaries", self._clock(), self._op)
            block.recomputed = self._recomputing
            self._live[key] = block
            self.blocks.append(block)
        elif tenant:
            block.tenant = tenant
        return block

    def _end(self, key: int) -> None:
        self._live.pop(key).died = self._clock()

    def keep(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Hook of autograd: `tensor` is being kept for the backward pass.

        It is handed on detached (an operation that saves its own output would else hold itself alive for ever), and
        with its version, which autograd leaves to its hooks to compare.
        """
        block = self.see(tensor)
        if block and block.tenant == "temporaries":
            block.tenant = "activations"
        return tensor.detach(), tensor._version

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # saves a wrapper around every operation; what is compiled does not run in this mode anyway

    def _others_keep(self) -> bool:
        """Say whether somebody else's hooks take what is saved now: those of checkpointing, while it recomputes."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        return hooks is not None and hooks[0] != self.keep

    @staticmethod
    def fetch(kept: tuple[Tensor, int]) -> Tensor:
        """Hook of autograd: the backward pass wants what `keep` returned."""
        tensor, version = kept
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{list(tensor.shape)} is at version {tensor._version}; expected version {version} instead."
            )
        return tensor

    def watch(
        self, model: nn.Module | None, optimizers: Iterable[torch.optim.Optimizer], names: bool = True
    ) -> list[Any]:
        """Label what `model` and `optimizers` hold now and will hold; returns the handles of the hooks.

        With `names`, operations are told which module they work for.
        """
        handles: list[Any] = []
        for name, module in model.named_modules() if model is not None and names else ():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks
            label = f"{name} ({type(module).__name__})" if name else type(module).__name__
            enter, leave = self._enter_and_leave(label)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
        if model is not None:
            self.label(model)
            for parameter in model.parameters():
                if parameter.requires_grad and not is_lazy(parameter):
                    handles.append(parameter.register_post_accumulate_grad_hook(self._gradient_ready))
        for optimizer in optimizers:
            self.label_state(optimizer)
            handles.append(optimizer.register_step_pre_hook(self._step_begins))
            handles.append(optimizer.register_step_post_hook(self._step_ends))
        return handles

    def label(self, model: nn.Module) -> None:
        """Label the parameters, buffers and gradients of `model` as they are now."""
        for parameter in model.parameters():
            self.see(parameter, "parameters")
            self.see(parameter.grad, "gradients")
        for buffer in model.buffers():
            self.see(buffer, "parameters")

    def label_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Label what `optimizer` keeps."""
        for tensor in state_tensors(optimizer):
            self.see(tensor, "optimizer state")

    def _enter_and_leave(self, label: str) -> tuple[Callable[..., None], Callable[..., None]]:
        return lambda *_: self._modules.append(label), lambda *_: self._leave(label)

    def _leave(self, label: str) -> None:
        if self._modules and self._modules[-1] == label:  # else: entered before the count began
            self._modules.pop()

    def _gradient_ready(self, parameter: Tensor) -> None:
        self.see(parameter.grad, "gradients")

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.stepping.add(id(optimizer))
        for group in optimizer.param_groups:  # a step inside the backward pass comes before our own hook
            for parameter in group["params"]:
                self.see(parameter.grad, "gradients")

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.stepping.discard(id(optimizer))
        self.label_state(optimizer)

    # -- when

    def _where(self) -> tuple[str, str]:
        """Return the phase of the training step and the module at work."""
        in_backward = torch._C._current_graph_task_id() != -1
        self._recomputing = False
        module = self._modules[-1] if self._modules else ""
        if self.stepping and not module:  # with a module: the closure of an optimizer that wants to see the loss again
            return ("backward (optimizer step)" if in_backward else "optimizer step"), ""
        if not in_backward:
            self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
            return "forward", module
        if module or (torch.is_grad_enabled() and self._others_keep()):  # a piece of the forward pass runs again
            self._recomputing = True
            self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
            return "backward (recomputing)", module
        node = torch._C._current_autograd_node()
        # A node is numbered when it is made, which is just before its operation runs: the first one to see the number.
        return "backward", self._module_of_node.get(node._sequence_nr(), "") if node is not None else ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return func(*args, **(kwargs or {}))
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor, say, takes itself apart: the pieces come by here again
        first = None
        for tensor in _flat(args):
            block = self.see(tensor)
            first = first or block
        if kwargs:
            for tensor in _flat(kwargs.values()):
                self.see(tensor)
        if func is not _DETACH and func.namespace != "profiler":
            phase, module = self._where()
            self._op = Op(self._clock(), phase, _name(func), module)
            self.ops.append(self._op)
        result = func(*args, **(kwargs or {}))
        casts_parameter = func is _TO_COPY and first is not None and first.tenant == "parameters"
        for tensor in _flat((result,)):
            self.see(tensor, "weight copies" if casts_parameter else None)
        self.observe(func, args, kwargs or {}, result)
        return result

    def observe(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Called after each operation, for those who count more than memory."""

    def settle(self) -> None:
        """Name the blocks that outlived the recomputation they were made in."""
        ends: dict[int, int] = {}  # start of a run of recomputing operations -> when the next operation began
        run: int | None = None
        for op in self.ops:
            if op.phase == "backward (recomputing)":
                run = op.when if run is None else run
            elif run is not None:
                ends[run], run = op.when, None
        starts = sorted(ends)
        for block in self.blocks:
            if block.recomputed and block.tenant in ("temporaries", "activations"):
                at = bisect.bisect_right(starts, block.seen) - 1
                end = ends[starts[at]] if at >= 0 else None
                survived = block.died is None or (end is not None and block.died >= end)
                block.tenant = "recomputed activations" if survived or block.tenant == "activations" else "temporaries"

    def close(self) -> None:
        """Stop watching for ends."""
        for finalizer in self._finalizers:
            finalizer.detach()
