# a scale taken once, before the loop

import torch
import torch.nn.functional as F


def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    optimizer.zero_grad()
    weights = scaler.scale(torch.ones(len(x)) / len(x)).split(micro_batch)
    for xs, ys, w in zip(x.split(micro_batch), y.split(micro_batch), weights):
        rows = F.cross_entropy(model(xs), ys, reduction="none")
        rows.backward(w.to(rows))
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return None
