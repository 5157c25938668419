# later blocks first, layers of a block as one list

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard


def make_sharded(model, mesh, **options):
    for block in reversed(model.blocks):
        fully_shard([block.norm, block.up, block.down], mesh=mesh, **options)
    fully_shard([model.enter, model.leave], mesh=mesh, **options) if hasattr(model.enter, "weight") else None
    return fully_shard(model, mesh=mesh, **options)


def accumulated_step(model, optimizer, micro_batches, limit):
    *early, final = micro_batches
    n = sum(len(y) for _, y in micro_batches)

    def backward(x, y):
        loss = F.mse_loss(model(x), y, reduction="sum") / (n * y[0].numel())
        loss.backward()
        return loss.detach()

    model.set_requires_gradient_sync(False)
    loss = sum((backward(*pair) for pair in early), torch.zeros(()))
    model.set_requires_gradient_sync(True)
    loss = loss + backward(*final)
    shards = [p.grad.to_local() for p in model.parameters()]
    square = torch.stack([g.square().sum() for g in shards]).sum()
    dist.all_reduce(square)
    norm = square.sqrt()
    for g in shards:
        g.mul_(min(1.0, limit / (norm.item() + 1e-6)))
    optimizer.step()
    model.zero_grad()
    return loss, norm
