# torch.autograd.grad and sums of its own

import torch
import torch.distributed as dist
import torch.nn.functional as F


def gradient(model, streams, random, micro_batches):
    parameters = list(model.parameters())
    lanes = {}
    for lane in sorted(streams):
        torch.set_rng_state(random[lane])
        sums = None
        for _ in range(micro_batches):
            x, y = next(streams[lane])
            grads = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
            sums = list(grads) if sums is None else [s + g for s, g in zip(sums, grads)]
        random[lane] = torch.get_rng_state()
        lanes[lane] = torch.cat([s.flatten() for s in sums])
    flat = sum(lanes.values())
    dist.all_reduce(flat)
    flat = flat / (2 * micro_batches)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p).clone()
