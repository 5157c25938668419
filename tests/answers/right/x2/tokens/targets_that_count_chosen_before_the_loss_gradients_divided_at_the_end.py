# targets that count chosen before the loss, gradients divided at the end

import torch
import torch.nn.functional as F


def token_step(model, optimizer, ids, targets, micro_batch):
    for p in model.parameters():
        p.grad = None
    count, summed = 0, 0.0
    for start in range(0, ids.shape[0], micro_batch):
        y = targets[start : start + micro_batch].reshape(-1)
        chosen = y.ne(-100).nonzero().squeeze(1)
        logits = model(ids[start : start + micro_batch]).reshape(len(y), -1)
        loss = F.nll_loss(F.log_softmax(logits[chosen], dim=1), y[chosen], reduction="sum")
        loss.backward()
        count, summed = count + len(chosen), summed + loss.item()
    torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], count)
    optimizer.step()
    return torch.tensor(summed / count)
