# a link that autograd crosses

import torch
import torch.distributed as dist
import torch.nn.functional as F


class _FromBefore(torch.autograd.Function):
    """Receives in the forward pass; sends the gradient in the backward pass."""

    @staticmethod
    def forward(ctx, anchor, stage, like):
        ctx.stage = stage
        x = torch.empty_like(like)
        dist.recv(x, stage.number - 1)
        return x

    @staticmethod
    def backward(ctx, dx):
        dx = dx.contiguous()
        ctx.stage.sending.append((dist.isend(dx, ctx.stage.number - 1), dx))
        return None, None, None


def run_forward(stage, i):
    x = stage.x[i]
    if stage.number > 0:
        x = _FromBefore.apply(torch.zeros((), requires_grad=True), stage, x)
    y = stage.module(x)
    if stage.number < stage.count - 1:
        stage.kept[i], value = y, y.detach()
        stage.sending.append((dist.isend(value, stage.number + 1), value))
        return None
    stage.kept[i] = F.mse_loss(y, stage.y[i]) / len(stage.y)
    return float(stage.kept[i])


def run_backward(stage, i):
    y, dy = stage.kept.pop(i), None
    if stage.number < stage.count - 1:
        dy = torch.empty(y.shape, dtype=y.dtype, device=y.device)
        dist.recv(dy, stage.number + 1)
    y.backward(dy)
