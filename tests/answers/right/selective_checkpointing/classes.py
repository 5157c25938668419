# classes

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


class keep_costly:
    def __init__(self, least):
        self.least = least

    def __call__(self):
        return create_selective_checkpoint_contexts(self.policy)

    def policy(self, context, op, *args, **kwargs):
        packet, cost = op.overloadpacket, 0.0
        aten = torch.ops.aten
        if packet in (aten.mm, aten.bmm):
            cost = 2.0 * args[1].shape[-2]
        elif packet is aten.addmm:
            cost = 2.0 * args[2].shape[0]
        elif "_scaled_dot_product" in packet.__name__:
            cost = 4.0 * args[2].shape[-2]
        return CheckpointPolicy.MUST_SAVE if cost >= self.least else CheckpointPolicy.PREFER_RECOMPUTE


class Ticket:
    def __init__(self, what):
        self.what = what


class moved:
    def __init__(self, parameters, put, get, least):
        self.own = {p.untyped_storage()._cdata for p in parameters}
        self.put, self.get, self.least = put, get, least

    def pack(self, tensor):
        if tensor.untyped_storage()._cdata in self.own or tensor.nbytes < self.least:
            return tensor.detach()
        return Ticket(self.put(tensor)) if tensor.is_floating_point() else tensor.detach()

    def unpack(self, kept):
        return self.get(kept.what) if isinstance(kept, Ticket) else kept

    def __enter__(self):
        self.context = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        return self.context.__enter__()

    def __exit__(self, *error):
        return self.context.__exit__(*error)
