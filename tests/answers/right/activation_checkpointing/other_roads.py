# other roads

import contextlib

import torch


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(run, x):
        return run(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.run, x = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, gradient):
        leaf = torch.empty_like(ctx.saved_tensors[0]).copy_(ctx.saved_tensors[0]).requires_grad_()
        with torch.enable_grad():
            y = ctx.run(leaf)
        y.backward(gradient.clone())
        return None, leaf.grad


def repeatable(run):
    @contextlib.contextmanager
    def as_it_was():
        now = torch.random.get_rng_state()
        with torch.amp.autocast_mode.autocast(again.kind, again.dtype, again.on):
            torch.random.set_rng_state(again.state)
            yield
        torch.random.set_rng_state(now)

    def again(x):
        if hasattr(again, "state"):
            with as_it_was():
                return run(x)
        again.kind = x.device.type
        again.on, again.dtype = torch.is_autocast_enabled(again.kind), torch.get_autocast_dtype(again.kind)
        again.state = torch.random.get_rng_state()
        return run(x)

    return again
