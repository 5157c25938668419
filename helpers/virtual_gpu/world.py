"""One rank of many, alone: the others are not there, and every collective ends at once.

The process gets the variables that torchrun would set, and PyTorch's fake process group. Sizes are those of the whole
world, so a rank shards, gathers and buckets as it would. Values are as if all ranks had the same ones: a sum is so many
times this rank's, a gathered tensor repeats this rank's, and what comes from a weight has no values anyway.
"""

import copy
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from . import pipeline
from .absent.models import AbsentError
from .hollow import give_hint, hint, is_hollow, is_small, make_hollow
from .homes import storage_of
from .patches import Patches
from .ranks import COLLECTIVES
from .waits import Waits

NAMESPACES = ("c10d", "_c10d_functional")


@dataclass(frozen=True)
class World:
    """Ranks on machines of equal size.

    Attributes:
        rank: the one that runs.
        size: how many there are.
        node: GPUs, and so ranks, in a node.
    """

    rank: int
    size: int
    node: int

    def environment(self) -> dict[str, str]:
        """Return what torchrun tells a process."""
        node, local = divmod(self.rank, self.node)
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.node),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(self.size // self.node),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "dry-run",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }


def install(patches: Patches, world: World | None, waits: Waits) -> None:
    """Let `init_process_group` make a fake group, and objects travel to this rank alone.

    Without a `world`, the program may make a group of one rank: gloo could not carry gradients without data either.
    """

    for name, value in ({} if world is None else world.environment()).items():
        before = os.environ.get(name)
        patches.later(functools.partial(_restore, name, before))
        os.environ[name] = value
    asked: dict[Any, str] = {}  # the backend that the script named, of each group
    new_group = c10d.new_group

    @functools.wraps(new_group)
    def made(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        group = new_group(ranks, None, None, *args, **kwargs)
        if isinstance(group, dist.ProcessGroup):
            asked[group] = str(backend or asked.get(c10d._get_default_group(), "nccl")).lower()
        return group

    def backend_of(group: Any = None) -> str:
        words = asked.get(c10d._get_default_group() if group is None else group, "nccl")
        return next((part[5:] for part in words.split(",") if part.startswith("cuda:")), words)

    replaced = {
        "init_process_group": _starting(c10d.init_process_group, world, asked),
        "new_group": made,
        "get_backend": backend_of,
        "monitored_barrier": lambda *_, **__: None,
        **_objects(world, waits),
        **{name: _collective(getattr(c10d, name), asked) for name in COLLECTIVES if hasattr(c10d, name)},
    }
    from torch.distributed import device_mesh

    for module in (dist, c10d, device_mesh):
        for name, function in replaced.items():
            if hasattr(module, name):
                patches.put(module, name, function)
    pipeline.install(patches)
    if not dist.is_initialized():
        patches.later(_destroy)


def _starting(initialise: Callable[..., None], world: World | None, asked: dict[Any, str]) -> Callable[..., None]:
    """Return `init_process_group` that makes a fake group, and notes the backend that was asked for."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    @functools.wraps(initialise)
    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *args: Any,
        **named: Any,
    ) -> None:
        own = World(0, 1, 1) if world is None else world
        if world is None and _size_of(world_size, init_method) != 1:
            _refuse_others(_size_of(world_size, init_method))
            initialise(backend, init_method, timeout, world_size, rank, store, *args, **named)  # says what is missing
        initialise(
            "fake",
            store=FakeStore(),
            rank=own.rank if rank in (-1, None) else rank,
            world_size=own.size if world_size in (-1, None) else world_size,
        )
        asked[c10d._get_default_group()] = str(backend).lower() if backend is not None else "cpu:gloo,cuda:nccl"

    return init_process_group


def _size_of(given: int | None, init_method: Any) -> int | None:
    """Return of how many ranks a group is to be, as `init_process_group` finds it; None where nothing says it."""
    if given not in (-1, None):
        return given
    query = parse_qs(urlparse(str(init_method or "")).query)
    size = query.get("world_size", [os.environ.get("WORLD_SIZE")])[0]
    return int(size) if size and size.isdecimal() else None


def _refuse_others(size: int | None) -> None:
    """Refuse a group of ranks that no option has asked for: the program would wait for them.

    Raises:
        AbsentError: the group is to have several ranks.
    """
    if size is not None and size > 1:
        raise AbsentError(f"The script makes a process group of {size} ranks, but here it is alone. Use --gpus {size}.")


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


_operator = "sum"


def _collective(function: Any, asked: dict[Any, str]) -> Any:
    """Refuse what NCCL refuses, and remember by which operator a collective reduces: no argument below says it.

    Args:
        function: of torch.distributed.
        asked: the backend of each group.
    """

    @functools.wraps(function)
    def collective(*args: Any, **kwargs: Any) -> Any:
        global _operator
        given = *args, *kwargs.values()
        group = next((value for value in given if isinstance(value, dist.ProcessGroup)), c10d.GroupMember.WORLD)
        if asked.get(group) == "nccl" and any(tensor.device.type == "cpu" for tensor in _flat(given)):
            raise RuntimeError("No backend type associated with device type cpu")
        op = next((value for value in given if isinstance(value, _OPERATORS)), dist.ReduceOp.SUM)
        _operator = str(op).rpartition(".")[2].lower()
        try:
            return function(*args, **kwargs)
        finally:
            _operator = "sum"

    return collective


_OPERATORS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def _objects(world: World | None, waits: Waits) -> dict[str, Any]:
    """Return stand-ins for the collectives of Python's objects, which no fake group can carry."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [copy.copy(obj) for _ in object_list]

    def gather_object(obj: Any, object_gather_list: Any = None, *_: Any, **__: Any) -> None:
        if object_gather_list is not None:
            all_gather_object(object_gather_list, obj)

    def scatter_object_list(
        scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, *_: Any, **__: Any
    ) -> None:
        if inputs := scatter_object_input_list:
            scatter_object_output_list[0] = inputs[(0 if world is None else world.rank) % len(inputs)]

    def recv_object_list(object_list: list[Any], *_: Any, **__: Any) -> int:
        waits.assume("recv_object_list", "nothing has come from the other rank")
        return 0

    return {
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "scatter_object_list": scatter_object_list,
        "broadcast_object_list": lambda *_, **__: None,
        "send_object_list": lambda *_, **__: None,
        "recv_object_list": recv_object_list,
    }


def communicate(func: Any, name: str, args: Any, group_size: int) -> Any:
    """Stand for a collective of the dispatcher that writes to its arguments: nothing travels."""
    if name == "monitored_barrier_":
        return None
    outputs, inputs = _flat(args[0]), _flat(args[1])
    rank_of = dist.get_rank() % max(1, group_size)
    if name in ("allreduce_", "allreduce_coalesced_", "reduce_"):
        for tensor in outputs:
            _reduced(tensor, tensor, group_size)
    elif name in ("_allgather_base_", "allgather_", "allgather_into_tensor_coalesced_", "allgather_coalesced_"):
        for place, output in enumerate(outputs):
            source = inputs[place * len(inputs) // len(outputs)]
            _write(output, source, lambda x, output=output: x.reshape(1, -1).expand(output.numel() // x.numel(), -1))
    elif name in ("_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "reduce_scatter_"):
        for place, output in enumerate(outputs):
            source = inputs[place] if len(inputs) == len(outputs) else inputs[rank_of]
            _write(output, source, lambda x, output=output: x.reshape(-1)[: output.numel()])
            _reduced(output, output, group_size)
    elif name == "alltoall_base_" and not args[3] and not args[4]:
        _write(outputs[0], inputs[0], lambda x: x.reshape(group_size, -1)[rank_of].expand(group_size, -1))
    elif name in ("alltoall_", "alltoall_base_", "recv_", "recv_any_source_", "scatter_", "gather_"):
        for output in outputs:
            make_hollow(output)
    future: Any = torch.futures.Future()
    future.set_result(outputs)
    work = torch._C._distributed_c10d._create_work_from_future(future).boxed()
    return (args[0], work) if len(func._schema.returns) == 2 else work


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _flat(part)] if isinstance(value, (list, tuple)) else []


def _write(output: Tensor, source: Tensor, shaped: Any) -> None:
    """Fill `output` from `source` where its values are known; else it has none."""
    if is_hollow(source) or not is_small(output.numel(), output.dtype) or not source.numel() or not output.numel():
        mean = hint(source, "mean")
        make_hollow(output)
        give_hint(output, "mean", mean)
        return
    values = shaped(source).reshape(-1)
    if storage_of(output).nbytes() == output.numel() * output.element_size():
        storage_of(output).hollow = False
    if values.numel() == output.numel() and not is_hollow(output):
        output.detach().view(-1).copy_(values)


def _reduced(output: Tensor, source: Tensor, size: int) -> None:
    if _operator not in ("sum", "premul_sum") or not output.numel():
        return
    if is_hollow(output):
        mean = hint(source, "mean")
        give_hint(output, "mean", None if mean is None else mean * size)
        parts = hint(source, "parts")
        give_hint(output, "parts", parts and [None if part is None else part * size for part in parts])
    else:
        output.detach().mul_(size)
