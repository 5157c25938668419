# functions in functions

import torch


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.inputs = run, x.detach()
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, gradient):
        run, x = ctx.inputs
        with torch.set_grad_enabled(True):
            own = x.requires_grad_(True)
            (run(own) * gradient).sum().backward()
        return None, own.grad


def repeatable(run):
    surroundings = []

    def again(x):
        if not surroundings:
            surroundings.append(torch.get_rng_state())
            surroundings.append(torch.is_autocast_enabled("cpu"))
            surroundings.append(torch.get_autocast_dtype("cpu"))
            return run(x)
        state, on, dtype = surroundings
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=dtype, enabled=on):
            torch.set_rng_state(state)
            return run(x)

    return again
