# synchronization by try and finally

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F


def train_step(model, optimizer, micro_batches, max_norm):
    optimizer.zero_grad()
    numbers = torch.tensor([0.0, 0.0])
    for _, y in micro_batches:
        numbers[1] += y[y != -100].numel()
    dist.all_reduce(numbers)
    waiting = list(micro_batches)
    try:
        while waiting:
            x, y = waiting.pop(0)
            model.set_requires_gradient_sync(not waiting)
            loss = F.nll_loss(model(x).flatten(0, 1).log_softmax(-1), y.reshape(-1), ignore_index=-100, reduction="sum")
            (loss * dist.get_world_size() / numbers[1]).backward()
            numbers[0] += loss.detach()
            del loss
    finally:
        model.set_requires_gradient_sync(True)
    mine = numbers[:1].clone()
    dist.all_reduce(mine)
    norm = torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm, foreach=True)
    optimizer.step()
    return (mine / numbers[1]).item(), norm.full_tensor().item()
