# a divide factor of one

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def train_step(model, optimizer, micro_batches, max_norm):
    for unit in (model, *model.blocks):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    optimizer.zero_grad(set_to_none=True)
    count = torch.tensor(float(sum(int(y.ne(-100).sum()) for _, y in micro_batches)))
    dist.all_reduce(count)
    loss = torch.zeros(())
    for number, (x, y) in enumerate(micro_batches):
        model.set_requires_gradient_sync(number + 1 == len(micro_batches))
        part = F.cross_entropy(model(x).transpose(1, 2), y, reduction="sum", ignore_index=-100) / count
        part.backward()
        loss += part.detach()
    dist.all_reduce(loss)
    parameters = [p for p in model.parameters() if p.grad is not None]
    norm = get_total_norm([p.grad for p in parameters]).full_tensor()
    clip_grads_with_norm_(parameters, max_norm, norm)
    optimizer.step()
    return float(loss), float(norm)
