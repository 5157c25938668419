# clipping by hand

import torch
import torch.nn.functional as F


def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    for i in range(0, len(x), micro_batch):
        outputs = model(x[i : i + micro_batch])
        loss = F.cross_entropy(outputs, y[i : i + micro_batch], reduction="sum")
        scaler.scale(loss / len(x)).backward()
    scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    scaler.step(optimizer)
    scaler.update()
