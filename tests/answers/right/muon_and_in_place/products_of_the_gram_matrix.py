# products of the gram matrix

import torch


def orthogonalize(matrix, iterations):
    a, b, c = 3.4445, -4.7750, 2.0315
    turned = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = torch.nn.functional.normalize(turned.flatten(), dim=0, eps=1e-12).view(turned.shape)
    while iterations:
        gram = x @ x.T
        ax = gram @ x
        x = a * x + b * ax + c * (gram @ ax)
        iterations -= 1
    return x.T if turned is not matrix else x


class Muon(torch.optim.Optimizer):
    def __init__(self, matrices, lr):
        super().__init__(matrices, {"lr": lr})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if "M" not in self.state[p]:
                    self.state[p]["M"] = p.grad.new_zeros(p.shape)
                new = 0.95 * self.state[p]["M"] + 0.05 * p.grad
                self.state[p]["M"] = new
                towards = orthogonalize(0.95 * new + 0.05 * p.grad, 5)
                p.data = p.data - group["lr"] * 0.2 * max(p.size()) ** 0.5 * towards


class HardtanhInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        torch.nn.functional.hardtanh_(x)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        y = ctx.saved_tensors[0]
        return torch.where((y > -1) & (y < 1), gradient, torch.zeros_like(gradient))
