"""From a stage on paper to what a rank runs: in which order the techniques are applied.

1. Tensor, context and expert parallelism decide which slice of each weight a rank has at all: `split`.
2. Recomputation wraps whole blocks of these slices: `recompute`.
3. The compiler comes next, and fuses what a block does, its recomputation included: `Trace.compile`.
4. `fully_shard` comes last: it gathers what a block needs before anything in it runs, and frees it afterwards: `shard`.

Pipeline parallelism is above all of this: it chose the blocks of the stage. The stage stays on the meta device, shapes
without memory, until `give_memory`. torchtitan's `infra/parallelize.py` has the same order.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ..simulate.model import materialize
from .adapters import freeze
from .attention import Wires
from .decoder import Experts, Stage
from .layout import Layout
from .trace import Trace
from .wire import Wire

LOW = {"bf16": torch.bfloat16, "bf16-amp": torch.bfloat16, "fp8": torch.bfloat16, "fp16-amp": torch.float16}
"""What matmuls compute in, by precision; FP32 where it is not here."""


@dataclass(frozen=True)
class StageKind:
    """What a stage consists of: blocks without and with experts, and whether it has the embedding and the head."""

    dense: int
    mixed: int
    first: bool
    last: bool


@dataclass
class Meshes:
    """The meshes over which `fully_shard` splits dense and expert parameters, and the wires' names by group."""

    dense: "dist.DeviceMesh | None"
    expert: "dist.DeviceMesh | None"
    names: dict[str, str]


def parallelize(layout: Layout, kind: StageKind, trace: Trace, meshes: Meshes) -> Stage:
    """Return a stage of `layout` as a rank runs it, on the meta device.

    Args:
        layout: who splits what.
        kind: of the stage.
        trace: hears what the wires send, and plays the compiler.
        meshes: of `process_group`.
    """
    stage = split(layout, kind, trace)
    recompute(stage, layout)
    if layout.compile:
        trace.compile(apart=_LOSS if layout.plain_ends else ())
    if layout.zero == "zero3":
        shard(stage, layout, meshes)
    return stage


# -- 1. tensor, context and expert parallelism


def split(layout: Layout, kind: StageKind, trace: Trace) -> Stage:
    """Return the rank's slices of the stage: every layer is built as narrow as a rank holds it."""
    wires = (Wire(name, getattr(layout, name), trace) for name in ("tensor", "context", "expert"))
    layers = [layout.arch.dense_layers - 1 - i for i in range(kind.dense)]
    layers += [layout.arch.dense_layers + i for i in range(kind.mixed)]
    with _disable_current_modes(), torch.device("meta"):
        stage = Stage(layout, Wires(*wires), layers, (kind.first, kind.last)).to(weight_dtype(layout))
    if layout.lora_rank:
        freeze(stage)
    return stage


def weight_dtype(layout: Layout) -> torch.dtype:
    """Return the dtype of the weights that a rank holds, before sharding."""
    sixteen = layout.precision == "bf16" or layout.engine == "megatron"
    return LOW.get(layout.precision, torch.float32) if sixteen else torch.float32


# -- 2. recomputation


def recompute(stage: Stage, layout: Layout) -> None:
    """Let every, or every few, blocks run again in the backward pass, as a whole or but for what is dear."""
    fused = layout.engine == "megatron" and layout.recompute == "selective"  # its fused attention does so anyway
    if layout.recompute == "none" or fused:
        return
    how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "determinism_check": "none"}
    if layout.recompute == "selective":
        how["context_fn"] = _keep_products
    for block in list(stage.blocks)[:: layout.recompute_every]:
        block.forward = partial(checkpoint, block.forward, **how)


_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
_KEPT = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)


def _keep_products() -> tuple[Any, Any]:
    """Return the contexts of selective recomputation: attention and every second product are kept, as in torchtitan."""
    seen = {False: 0, True: 0}

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if func in _PRODUCTS:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = func in _KEPT
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


# -- 3. the compiler

_LOSS = (  # which a loop around a compiled model leaves to eager mode
    *("aten._log_softmax", "aten.nll_loss_forward"),
    *("aten._log_softmax_backward_data", "aten.nll_loss_backward"),
)


# -- 4. fully_shard


def shard(stage: Stage, layout: Layout, meshes: Meshes) -> None:
    """Split the parameters over the data ranks, inside out: experts, blocks, the ends, and what is left."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    low = LOW.get(layout.precision, torch.float32)
    mixed = low != weight_dtype(layout) or layout.accumulate_whole
    wide = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    policy = wide if mixed else MixedPrecisionPolicy()
    how = {"mp_policy": policy, "reshard_after_forward": layout.reshard_after_forward}
    for block in stage.blocks:
        if isinstance(block.mlp, Experts):
            fully_shard(block.mlp, mesh=meshes.expert, **how)
        fully_shard(block, mesh=meshes.dense, **how)
    for end in (stage.embedding, stage.head):
        if end is not None and not (layout.arch.tied or layout.plain_ends):  # else with the whole stage
            fully_shard(end, mesh=meshes.dense, **how | {"reshard_after_forward": end is stage.embedding})
    fully_shard(stage, mesh=meshes.dense, **how)


def give_memory(stage: nn.Module, layout: Layout) -> None:
    """Move a stage from the meta device to memory, which is the fake tensors' where they are on."""
    if layout.zero == "zero3":
        stage.to_empty(device="cpu")
    else:
        materialize(stage)


@contextlib.contextmanager
def process_group(layout: Layout) -> Iterator[Meshes]:
    """Open a fake process group, whose collectives return at once, where `fully_shard` wants one."""
    if layout.zero != "zero3":
        yield Meshes(None, None, {})
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # which a process group replaces, to put its rank before tracebacks
    world = layout.replicate * layout.shards * layout.tensor
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        names: dict[str, str] = {}
        meshes = []
        wires = {"shard": layout.shards} | ({"expert shard": layout.expert_shards} if layout.arch.experts else {})
        for wire, shards in wires.items():
            sizes = (layout.replicate, world // layout.replicate // shards, shards)
            mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "others", wire))
            names |= {mesh.get_group(dim).group_name: dim for dim in ("replicate", wire)}
            meshes.append(mesh["replicate", wire] if layout.replicate > 1 else mesh[wire])
        yield Meshes(meshes[0], meshes[-1], names)
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
