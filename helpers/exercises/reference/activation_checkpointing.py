"""The reference answers of solutions/05_activation_checkpointing.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import functools
import math
import textwrap
import warnings
from helpers import COLORS, Claims, MemoryMeter, Prediction, SmallGPT, benchmark, check, count_flops, device_name, english, explore, hint, human_bytes, in_turns, kept_over_time, pick_device, show, show_table, sign_of_life
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

device = pick_device()
claims = Claims()


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()  # a leaf: the graph of the second run ends here
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)  # this also adds to the parameters' .grad
        return None, x.grad


def random_states():
    """Return the states of the CPU's generator and of the device's, if it has one."""
    own = {"cuda": torch.cuda, "mps": torch.mps}.get(device.type)
    return torch.get_rng_state(), own.get_rng_state() if own else None


def set_random_states(states):
    """Restore the states that `random_states` returned."""
    torch.set_rng_state(states[0])
    if states[1] is not None:
        {"cuda": torch.cuda, "mps": torch.mps}[device.type].set_rng_state(states[1])


def repeatable(run):
    noted = None

    def again(x):
        nonlocal noted
        kind = x.device.type
        if noted is None:
            noted = random_states(), torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
            return run(x)
        states, dtype, enabled = noted
        now = random_states()
        set_random_states(states)
        with torch.autocast(kind, dtype, enabled):
            y = run(x)
        set_random_states(now)
        return y

    return again
