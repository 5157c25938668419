# a copy of each layer dtensors copied

import copy

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor


def on_cpu(layer):
    """A layer alone, without what is below it, with memory of its own."""
    return copy.deepcopy(layer)._apply(lambda t: torch.empty_like(t, device="cpu"), recurse=False)


@torch.no_grad()
def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model = make_model()
        bare = {name: layer for name, layer in make_model().named_modules() if hasattr(layer, "reset_parameters")}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(dtype, torch.float32), reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(dtype, torch.float32, torch.float32))
    model.to_empty(device="cpu")
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    torch.manual_seed(seed)
    for name, layer in bare.items():
        full = on_cpu(layer)
        full.reset_parameters()
        for key, value in full.named_parameters(prefix=name, recurse=False):
            p = parameters[key]
            p.copy_(distribute_tensor(value, p.device_mesh, p.placements, src_data_rank=None))
        for key, value in full.named_buffers(prefix=name, recurse=False):
            buffers[key].copy_(value)
    return model
