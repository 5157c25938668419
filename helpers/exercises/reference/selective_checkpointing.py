"""The reference answers of solutions/05b_selective_checkpointing.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import functools
import itertools
from helpers import COLORS, Claims, Elsewhere, MemoryMeter, Prediction, SmallGPT, check, count_flops, device_name, english, explore, hint, human_bytes, in_turns, pick_device, saved_tensor_bytes, show, show_table, sign_of_life
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch._functorch import config as partitioner
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

device = pick_device()
claims = Claims()
aten = torch.ops.aten
MiB = 2 ** 20


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
