"""The reference answers of solutions/09_lean_optimizers.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import importlib.util
import math
import statistics
from helpers import COLOURS, TENANTS, Claims, GiB, MemoryMeter, MiB, Prediction, Recipe, SmallCNN, SmallGPT, ViT, check, compare, device_name, digits, english, explore, human_bytes, parallel_map, pick_device, planned, show, state_bytes, tenant_bars
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
claims = Claims()
HAS_BNB, HAS_TORCHAO = (importlib.util.find_spec(name) is not None for name in ('bitsandbytes', 'torchao'))


def step_in_backward(parameters, make_optimizer):
    optimizers, handles = [], []
    trained = dict.fromkeys(p for p in parameters if p.requires_grad)  # each one once
    for parameter in trained:
        optimizer = make_optimizer([parameter])

        def step(parameter, optimizer=optimizer):  # bound now: the loop goes on
            optimizer.step()
            optimizer.zero_grad()

        optimizers.append(optimizer)
        handles.append(parameter.register_post_accumulate_grad_hook(step))
    return optimizers, handles
