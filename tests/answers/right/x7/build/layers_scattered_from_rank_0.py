# layers scattered from rank 0

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model, full = make_model(), make_model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(dtype, torch.float32))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(dtype, torch.float32, torch.float32))
    model.to_empty(device=mesh.device_type)
    torch.manual_seed(seed)
    for target, source in zip(model.modules(), full.modules(), strict=True):
        if hasattr(source, "reset_parameters"):
            fill(target, source)
    return model


@torch.no_grad()
def fill(target, source):
    source.to_empty(device="cpu", recurse=False)
    source.reset_parameters()
    for p, q in zip(target.parameters(recurse=False), source.parameters(recurse=False), strict=True):
        p.copy_(distribute_tensor(q, p.device_mesh, p.placements))
    for p, q in zip(target.buffers(recurse=False), source.buffers(recurse=False), strict=True):
        p.copy_(q)
    source.to("meta")
