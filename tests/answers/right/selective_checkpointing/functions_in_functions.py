# functions in functions

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


def keep_costly(least):
    def terms(name, args):
        if name in ("aten::mm", "aten::bmm", "aten::linear"):
            return args[0].size(-1)
        if name == "aten::addmm":
            return args[1].size(1)
        if name.startswith("aten::_scaled_dot_product"):
            return 2 * args[1].size(2)
        return 0

    def decide(context, op, *args, **kwargs):
        if 2 * terms(op.name(), args) < least:
            return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE

    return lambda: create_selective_checkpoint_contexts(decide)


def moved(parameters, put, get, least):
    addresses = [p.untyped_storage().data_ptr() for p in parameters]

    def goes(tensor):
        large = tensor.numel() * tensor.element_size() >= least
        return tensor.dtype.is_floating_point and large and tensor.untyped_storage().data_ptr() not in addresses

    def pack(tensor):
        if goes(tensor):
            ticket = put(tensor)
            return lambda: get(ticket)
        stays = tensor.detach()
        return lambda: stays

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda fetch: fetch())
