"""The reference answers of solutions/01_where_memory_goes.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import math
from helpers import Claims, GiB, MemoryMeter, Prediction, Recipe, SmallCNN, SmallGPT, category_bars, category_table, check, count_parameters, device_name, digits, explore_memory, hint, human_bytes, pick_device, plan_many, show, show_table
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

device = pick_device()
claims = Claims()
MiB = 2 ** 20


def resident_bytes(model, scheme):
    weight = {"fp32": 4, "autocast": 4, "classic": 2, "bf16": 2}[scheme]
    trained_too = {"fp32": 4 + 8, "autocast": 4 + 8, "classic": 2 + 4 + 8, "bf16": 2 + 4}[scheme]
    return sum(p.numel() * (weight + trained_too * p.requires_grad) for p in model.parameters())


def gpt_peak(vocabulary, context, layers, width, batch):
    tokens = batch * context
    parameters = (vocabulary + context) * width + layers * (12 * width**2 + 13 * width) + 2 * width
    logits = 4 * tokens * vocabulary
    kept = 4 * tokens * (16 * width * layers + 2 * width)  # 16 per block; inputs of the first norm and the head
    # Logits, their log-softmax, its gradient, and the gradient of the logits are alive when the backward pass begins.
    at_backward = 12 * parameters + kept + 4 * logits
    step = (12 + 4 + 4) * parameters + logits  # all gradients, foreach's copy, and the variable `logits`
    return max(at_backward, step)
