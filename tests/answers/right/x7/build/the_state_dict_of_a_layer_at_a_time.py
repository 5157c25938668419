# the state dict of a layer at a time

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model, spare = make_model(), make_model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32))
    fully_shard(
        model,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32),
    )
    model.to_empty(device="cpu")
    options = StateDictOptions(full_state_dict=True, strict=False)
    torch.manual_seed(seed)
    for name, layer in spare.named_modules():
        reset = getattr(layer, "reset_parameters", None)
        if reset is None:
            continue
        layer.to_empty(device="cpu", recurse=False)
        reset()
        whole = {key: p.detach() for key, p in layer.named_parameters(name, recurse=False)}
        set_model_state_dict(model, whole, options=options)
        for key, buffer in layer.named_buffers(recurse=False):
            model.get_submodule(name).get_buffer(key).copy_(buffer)
        layer.to_empty(device="meta", recurse=False)
    return model
