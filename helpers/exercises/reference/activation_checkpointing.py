"""The reference answers of solutions/05_activation_checkpointing.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import functools
import itertools
import math
import warnings
from helpers import COLOURS, TENANTS, Claims, MemoryMeter, Prediction, SmallGPT, benchmark, check, compare, count_flops, device_name, english, explore, hfu, human_bytes, mfu, pick_device, show
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

device = pick_device()
claims = Claims()
MiB = 2 ** 20


def choose_blocks(kept, inputs, flops, budget):
    n = len(kept)

    def held(chosen):
        stay = sum(kept[i] for i in range(n) if i not in chosen)
        return stay + sum(inputs[i] for i in chosen) + max((kept[i] for i in chosen), default=0)

    choices = itertools.chain.from_iterable(itertools.combinations(range(n), r) for r in range(n + 1))
    fitting = [chosen for chosen in choices if held(chosen) <= budget]
    return min(fitting, key=lambda chosen: sum(flops[i] for i in chosen), default=None)
