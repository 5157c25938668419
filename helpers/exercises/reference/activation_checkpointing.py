"""The reference answers of solutions/05_activation_checkpointing.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import functools
import itertools
import math
import tempfile
import textwrap
import warnings
from helpers import COLORS, Claims, MemoryMeter, Prediction, SmallGPT, benchmark, check, count_flops, device_name, english, explore, hint, human_bytes, kept_over_time, pick_device, saved_tensor_bytes, show, show_table, sign_of_life
from helpers.virtual_gpu import virtual_gpu
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch._functorch import config as partitioner
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

device = pick_device()
claims = Claims()
aten = torch.ops.aten
MiB = 2 ** 20


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


FACTOR = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.linear.default: 0}


def is_attention(op):
    return op.name().startswith("aten::_scaled_dot_product")


def keep_costly(least):
    def flops_per_element(op, args):
        if op in FACTOR:
            return 2 * args[FACTOR[op]].shape[-1]
        return 4 * args[1].shape[-2] if is_attention(op) else 0

    def policy(context, op, *args, **kwargs):
        worth_it = flops_per_element(op, args) >= least
        return CheckpointPolicy.MUST_SAVE if worth_it else CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, policy)


def moved(parameters, put, get, least):
    there = {p.untyped_storage().data_ptr() for p in parameters}

    def pack(tensor):
        exists = tensor.untyped_storage().data_ptr() in there
        if exists or tensor.nbytes < least or not tensor.is_floating_point():
            return False, tensor.detach()
        return True, put(tensor)

    def unpack(packed):
        away, kept = packed
        return get(kept) if away else kept

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
