# gathered from both ranks and added in the order of lanes

import torch
import torch.distributed as dist
import torch.nn.functional as F


def gradient(model, streams, random, micro_batches):
    def of(lane):
        for p in model.parameters():
            p.grad = None
        torch.set_rng_state(random[lane])
        for _ in range(micro_batches):
            x, y = next(streams[lane])
            F.cross_entropy(model(x), y).backward()
        random[lane] = torch.get_rng_state()
        return [p.grad.clone() for p in model.parameters()]

    mine = {lane: of(lane) for lane in streams}
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    both = {lane: grads for part in parts for lane, grads in part.items()}
    for p, a, b in zip(model.parameters(), both[0], both[1]):
        p.grad = (a + b) / (2 * micro_batches)
