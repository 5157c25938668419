# gradients summed in lists of their own

import torch
import torch.nn.functional as F


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    parameters = list(model.parameters())
    sums, squares = None, 0
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = scaler.scale(F.cross_entropy(model(xs), ys, reduction="sum"))
        grads = torch.autograd.grad(loss, parameters)
        norms = torch.stack(torch._foreach_norm(grads)) / scaler.get_scale()  # of the sum over the rows
        squares = squares + (norms**2).sum() / len(xs) / len(x)
        sums = list(grads) if sums is None else torch._foreach_add(sums, grads)
    for p, total in zip(parameters, sums, strict=True):
        p.grad = total / len(x)
    one, other = optimizers
    scaler.unscale_(one)
    scaler.unscale_(other)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    if norm - norm == 0:
        scaler.step(one)
        scaler.step(other)
    scaler.update()
    return norm, squares
