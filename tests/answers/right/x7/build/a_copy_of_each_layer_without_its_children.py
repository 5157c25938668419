# a copy of each layer without its children

import copy

from helpers.exercises.reference.x7 import copy_part

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def allocate(layer):
    """Return a copy of a meta layer, without children, whose own tensors are on the CPU."""
    alone = copy.copy(layer)
    alone._modules = {}
    alone._parameters = dict(layer._parameters)
    alone._buffers = dict(layer._buffers)
    for key, p in layer.named_parameters(recurse=False):
        alone._parameters[key] = torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=False)
    for key, b in layer.named_buffers(recurse=False):
        alone._buffers[key] = torch.empty(b.shape, dtype=b.dtype)
    return alone


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model = make_model()
    shapes = copy.deepcopy(model)

    def shard(module, **more):
        fully_shard(
            module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, **more)
        )

    list(map(shard, model.blocks))
    shard(model, output_dtype=torch.float32)
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    for plain, target in zip(shapes.modules(), model.modules(), strict=True):
        if callable(getattr(plain, "reset_parameters", None)):
            full = allocate(plain)
            full.reset_parameters()
            copy_part(full, target)
            del full
    return model
