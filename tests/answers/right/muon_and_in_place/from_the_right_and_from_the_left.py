# from the right and from the left

import torch


def orthogonalize(matrix, iterations):
    x = matrix / (torch.linalg.matrix_norm(matrix) + 1e-7)
    tall = x.shape[0] > x.shape[1]
    for _ in range(iterations):
        gram = x.mT @ x if tall else x @ x.mT
        factor = -4.7750 * gram + 2.0315 * gram @ gram
        x = 3.4445 * x + (x @ factor if tall else factor @ x)
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, matrices, lr):
        super().__init__(matrices, dict(lr=lr))

    def of(self, p):
        kept = self.state[p]
        return kept.setdefault("buffer", torch.zeros(p.shape, device=p.device))

    @torch.no_grad()
    def step(self, closure=None):
        pairs = ((group["lr"], p) for group in self.param_groups for p in group["params"])
        for lr, p in pairs:
            g = p.grad
            if g is None:
                continue
            m = self.of(p)
            m *= 0.95
            m += 0.05 * g
            p.copy_(p - lr * 0.2 * max(p.shape) ** 0.5 * orthogonalize(m * 0.95 + g * 0.05, 5))


class HardtanhInPlace(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clamp_(min=-1).clamp_(max=1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient.masked_fill(y.abs() >= 1, 0)
