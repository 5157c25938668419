# fused products and a dictionary

import torch


def orthogonalize(matrix, iterations):
    if len(matrix) > len(matrix[0]):
        return orthogonalize(matrix.t().contiguous(), iterations).t()
    norm = matrix.square().sum().sqrt()
    x = matrix.clone()
    if norm > 0:
        x /= norm
    for _ in range(iterations):
        a = torch.einsum("ij,kj->ik", x, x)
        x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, matrices, lr):
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            with_gradients = [p for p in group["params"] if isinstance(p.grad, torch.Tensor)]
            for p in with_gradients:
                self.update(p, group["lr"])

    def update(self, p, lr):
        old = self.state[p].get("momentum")
        momentum = 0.05 * p.grad if old is None else torch.lerp(old, p.grad, 0.05)
        self.state[p]["momentum"] = momentum
        direction = orthogonalize(momentum.mul(0.95).add(p.grad, alpha=0.05), 5)
        p.add_(direction.mul_(-lr * 0.2 * torch.tensor(max(p.shape)).sqrt().item()))


class HardtanhInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        torch.clamp(x, -1, 1, out=x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        passes = result.square() < 1
        return passes.to(gradient.dtype).mul_(gradient)
