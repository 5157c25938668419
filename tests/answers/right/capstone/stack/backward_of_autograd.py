# backward of autograd

import types

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def accumulate(model, x, y, micro):
    losses = []
    for start in range(0, len(x), micro):
        rows = slice(start, start + micro)
        loss = F.cross_entropy(model(x[rows]), y[rows]) * len(x[rows]) / len(x)
        torch.autograd.backward(loss)
        losses.append(loss)  # its graph is freed


def checkpoint_blocks(model):
    def forward(self, x):
        return checkpoint(type(self).forward, self, x, use_reentrant=False, preserve_rng_state=False)

    for block in model.blocks:
        block.forward = types.MethodType(forward, block)


def signum_step(means, lr):
    for p, mean in means.items():
        p.data.add_(torch.sign(mean), alpha=-lr)


def fold(means):
    handles = []
    for p, mean in means.items():
        mean *= 0.9

        def take(p, mean=mean):
            mean.add_(p.grad, alpha=0.1)
            p.grad = None

        handles.append(p.register_post_accumulate_grad_hook(take))
    return handles
