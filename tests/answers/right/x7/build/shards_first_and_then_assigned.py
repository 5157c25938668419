# shards first and then assigned

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model, plan = make_model(), make_model()
    inner = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    outer = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for unit, policy in [*((block, inner) for block in model.blocks), (model, outer)]:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    shapes = {name: (p.device_mesh, p.placements) for name, p in model.named_parameters()}
    shards = {}
    torch.manual_seed(seed)
    for prefix, layer in plan.named_modules():
        if hasattr(layer, "reset_parameters"):
            layer.to_empty(device="cpu", recurse=False)
            layer.reset_parameters()
            for name, p in layer.named_parameters(prefix, recurse=False):
                shards[name] = distribute_tensor(p.detach(), *shapes[name], src_data_rank=None)
            for name, buffer in layer.named_buffers(prefix, recurse=False):
                path, _, key = name.rpartition(".")
                model.get_submodule(path)._buffers[key] = buffer.clone()
            layer.to_empty(device="meta", recurse=False)
    model.load_state_dict(shards, strict=False, assign=True)
    return model
