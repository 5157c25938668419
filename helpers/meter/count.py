"""A count of tensor memory: which storages are alive, since when, and whose they are.

A `TorchDispatchMode` sees every operation on tensors. Each new storage behind an output becomes a `Block`; a weak
reference tells when it is freed. Hooks of autograd, of the modules and of the optimizers say what the block is for.

Two instruments are built on this count. The meter (`session.py`) joins it with the allocator's log of a real step; the
planner (`planner/simulate/`) counts a step on fake tensors, which have sizes and no memory.
"""

import bisect
import functools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from .operation import NO_OP, Op
from .optimizer_state import state_tensors
from .tensor_parts import flat_tensors, sparse_parts

_DETACH = torch.ops.aten.detach.default
_TO_COPY = torch.ops.aten._to_copy.default
_DEVICE = torch.ops.prim.device.default  # asks a fake tensor for its device; frequent, and touches no memory
_FAKE_DEVICE = "fake_device"  # where a fake tensor keeps it: an attribute, which takes no way through the modes


@dataclass(slots=True, eq=False)
class Block:
    """The memory of one storage, from its first use (`start`) to when it is freed (`end`; None: still alive).

    Times are those of the count's clock. `address` is where it lies, `op` the operation that made it.
    """

    address: int
    nbytes: int
    category: str
    start: int
    op: Op
    end: int | None = None
    recomputed: bool = False


@functools.cache
def _name(func: Any) -> str:
    return str(func)  # slow enough to be worth remembering


def _device_of(tensor: Tensor) -> torch.device:
    return getattr(tensor, _FAKE_DEVICE, None) or tensor.device


class Count(TorchDispatchMode):
    """Keeps a `Block` for each storage that an operation touches, without keeping the storage alive.

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
        self._device_type, self._clock, self._address = device_type, clock, address
        self._live: dict[int, Block] = {}
        self._finalizers: list[weakref.finalize] = []
        self._modules: list[str] = []
        self._module_of_node: dict[int, str] = {}  # autograd's sequence number -> the module that was running
        self._op = NO_OP
        self._recomputing = False

    # -- whose it is

    def track(self, tensor: object, category: str | None = None) -> Block | None:
        """Find or make the block of `tensor`; a `category` given is written on it."""
        if not isinstance(tensor, Tensor) or _device_of(tensor).type != self._device_type:
            return None
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, what this rank holds
        if tensor.layout is not torch.strided:
            for part in sparse_parts(tensor):
                self.track(part, category)
            return None
        try:
            storage = tensor.untyped_storage()
            address = self._address(storage)
        except (NotImplementedError, RuntimeError, ValueError):  # wrappers and lazy parameters have none
            return None
        if not address:
            return None
        return self.track_storage(storage, address, category)

    def track_storage(self, storage: torch.UntypedStorage, address: int, category: str | None = None) -> Block:
        """Find or make the block of `storage`, which lies at `address`."""
        key = storage._cdata
        block = self._live.get(key)
        if block is None or block.address != address or block.nbytes != storage.nbytes():
            if block is None:
                self._finalizers.append(weakref.finalize(storage, self._end, key))
            else:  # resized
                block.end = self._clock()
                category = category or block.category
            block = Block(address, storage.nbytes(), category or "temporaries", self._clock(), self._op)
            block.recomputed = self._recomputing
            self._live[key] = block
            self.blocks.append(block)
        elif category:
            block.category = category
        return block

    def _end(self, key: int) -> None:
        self._live.pop(key).end = self._clock()

    def pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Pack hook of autograd: `tensor` is being saved for the backward pass.

        It is saved detached (an operation that saves its own output would otherwise never release it), and
        with its version, which autograd leaves to its hooks to compare.
        """
        block = self.track(tensor)
        if block and block.category == "temporaries":
            block.category = "activations"
        return tensor.detach(), tensor._version

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # saves a wrapper around every operation; what is compiled does not run in this mode anyway

    def _other_hooks_save(self) -> bool:
        """Say whether other hooks than ours pack what is saved now: those of checkpointing, while it recomputes."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        return hooks is not None and hooks[0] != self.pack

    @staticmethod
    def unpack(saved: tuple[Tensor, int]) -> Tensor:
        """Unpack hook of autograd: the backward pass needs what `pack` returned."""
        tensor, version = saved
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

        With `names`, each operation is recorded with the module it works for.
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
            self.track(parameter, "parameters")
            self.track(parameter.grad, "gradients")
        for buffer in model.buffers():
            self.track(buffer, "parameters")

    def label_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Label the state of `optimizer`, and count the parameters that it holds: they need not be the model's."""
        for tensor in state_tensors(optimizer):
            self.track(tensor, "optimizer state")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.track(parameter)

    def _enter_and_leave(self, label: str) -> tuple[Callable[..., None], Callable[..., None]]:
        return lambda *_: self._modules.append(label), lambda *_: self._leave(label)

    def _leave(self, label: str) -> None:
        if self._modules and self._modules[-1] == label:  # else: entered before the count began
            self._modules.pop()

    def _gradient_ready(self, parameter: Tensor) -> None:
        self.track(parameter.grad, "gradients")

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.stepping.add(id(optimizer))
        for group in optimizer.param_groups:  # a step inside the backward pass comes before our own hook
            for parameter in group["params"]:
                self.track(parameter.grad, "gradients")

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.stepping.discard(id(optimizer))
        self.label_state(optimizer)

    # -- when it was made

    def _phase_and_module(self) -> tuple[str, str]:
        """Return the phase of the training step and the module at work."""
        in_backward = torch._C._current_graph_task_id() != -1
        self._recomputing = False
        module = self._modules[-1] if self._modules else ""
        if self.stepping and not module:  # with a module: the closure of an optimizer that wants to see the loss again
            return ("backward (optimizer step)" if in_backward else "optimizer step"), ""
        if not in_backward:
            self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
            return "forward", module
        if module or (torch.is_grad_enabled() and self._other_hooks_save()):  # part of the forward pass runs again
            self._recomputing = True
            self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
            return "backward (recomputing)", module
        node = torch._C._current_autograd_node()
        # A node is numbered when it is made, which is just before its operation runs: the first one to see the number.
        return "backward", self._module_of_node.get(node._sequence_nr(), "") if node is not None else ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return getattr(args[0], _FAKE_DEVICE, None) or func(*args, **(kwargs or {}))
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor, say, takes itself apart: its parts come through here again
        first = None
        for tensor in flat_tensors(args):
            block = self.track(tensor)
            first = first or block
        if kwargs:
            for tensor in flat_tensors(kwargs.values()):
                self.track(tensor)
        if func is not _DETACH and func.namespace != "profiler":
            phase, module = self._phase_and_module()
            self._op = Op(self._clock(), phase, _name(func), module)
            self.ops.append(self._op)
        result = func(*args, **(kwargs or {}))
        casts_parameter = func is _TO_COPY and first is not None and first.category == "parameters"
        for tensor in flat_tensors((result,)):
            self.track(tensor, "weight copies" if casts_parameter else None)
        self.observe(func, args, kwargs or {}, result)
        return result

    def observe(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Called after each operation; a subclass overrides it to count more than memory."""

    def label_recomputed(self) -> None:
        """Label the blocks that outlived the recomputation they were made in."""
        ends: dict[int, int] = {}  # start of a run of recomputing operations -> when the next operation began
        run: int | None = None
        for op in self.ops:
            if op.phase == "backward (recomputing)":
                run = op.when if run is None else run
            elif run is not None:
                ends[run], run = op.when, None
        starts = sorted(ends)
        for block in self.blocks:
            if block.recomputed and block.category in ("temporaries", "activations"):
                at = bisect.bisect_right(starts, block.start) - 1
                end = ends[starts[at]] if at >= 0 else None
                survived = block.end is None or (end is not None and block.end >= end)
                kept = survived or block.category == "activations"
                block.category = "recomputed activations" if kept else "temporaries"

    def close(self) -> None:
        """Stop waiting for storages to be freed."""
        for finalizer in self._finalizers:
            finalizer.detach()
