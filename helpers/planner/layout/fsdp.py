"""The memory of FSDP on a rank of a layout: `fully_shard` itself runs, on fake tensors and a fake process group.

So the shards (`shard`), and what is gathered for a block or waits to be reduced (`label_gathered`), are in the record
like all other tensors; no formula stands in for them. `rank_memory.py` adds up what a step holds of them. A recipe in
plain PyTorch, which splits nothing else, is in `simulate/fsdp.py`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..simulate.fsdp import fake_process_group
from .decoder import Experts, Stage
from .dtypes import LOW, weight_dtype
from .layout import Layout
from .trace import BUFFERS, Trace


@dataclass
class Meshes:
    """The meshes over which `fully_shard` splits dense and expert parameters, and the wires' names by group."""

    dense: "dist.DeviceMesh | None"
    expert: "dist.DeviceMesh | None"
    names: dict[str, str]


@contextlib.contextmanager
def process_group(layout: Layout) -> Iterator[Meshes]:
    """Open a fake process group, whose collectives return at once, where `fully_shard` wants one."""
    if layout.zero != "zero3":
        yield Meshes(None, None, {})
        return
    from torch.distributed.device_mesh import init_device_mesh

    world = layout.replicate * layout.shards * layout.tensor
    with fake_process_group(world):
        names: dict[str, str] = {}
        meshes = []
        wires = {"shard": layout.shards} | ({"expert shard": layout.expert_shards} if layout.arch.experts else {})
        for wire, shards in wires.items():
            sizes = (layout.replicate, world // layout.replicate // shards, shards)
            mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "others", wire))
            names |= {mesh.get_group(dim).group_name: dim for dim in ("replicate", wire)}
            meshes.append(mesh["replicate", wire] if layout.replicate > 1 else mesh[wire])
        yield Meshes(meshes[0], meshes[-1], names)


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


def label_gathered(stage: Stage, trace: Trace) -> None:
    """Label what `fully_shard` keeps besides its shards: gathered weights, and gradients not reduced yet."""
    for module in stage.modules():
        group = module._get_fsdp_state()._fsdp_param_group if hasattr(module, "_get_fsdp_state") else None
        for parameter in group.fsdp_params if group is not None else ():
            trace.track(getattr(parameter, "unsharded_accumulated_grad", None), "gradients")
            for gathered in getattr(parameter, "all_gather_outputs", ()):
                trace.track(gathered, BUFFERS)
