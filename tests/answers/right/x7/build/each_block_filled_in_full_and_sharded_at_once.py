# each block filled in full and sharded at once

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model = make_model()
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    last = {list(block.modules())[-1]: block for block in model.blocks}
    torch.manual_seed(seed)
    for layer in list(model.modules()):
        layer.to_empty(device="cpu", recurse=False)
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
        if layer in last:
            fully_shard(last[layer], mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(dtype, torch.float32, torch.float32))
