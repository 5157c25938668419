# chunks by hand freed after the forward pass everywhere

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def my_rows(full, mesh):
    ranks, rank = mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)
    rows = -(-len(full) // ranks)
    return full[rows * rank : rows * (rank + 1)]


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model = make_model()
        layers = [(n, m) for n, m in make_model().named_modules() if hasattr(m, "reset_parameters")]
    common = {"mesh": mesh, "reshard_after_forward": True}
    for block in model.blocks:
        fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32), **common)
    outer = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
    fully_shard(model, mp_policy=outer, **common)
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    while layers:
        name, layer = layers.pop(0)
        layer.to_empty(device="cpu", recurse=False)
        layer.reset_parameters()
        mine = model.get_submodule(name)
        for key, value in layer._parameters.items():
            if value is not None:
                mine._parameters[key].data.to_local().copy_(my_rows(value.data, mesh))
        for key, value in layer._buffers.items():
            mine._buffers[key].data.copy_(value.data)
    return model
