"""The reference answers of solutions/10_compilation_and_fusion.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import io
import logging
import math
import os
import tempfile
import time
import warnings
from helpers import Claims, MemoryMeter, Prediction, Recipe, benchmark, check, compare, device_name, explore, find_gpu, hint, human_bytes, numbers_beyond_cache, pick_device, planned, saved_tensor_bytes, sign_of_life, traffic, why_no_compiler, written_kernels
from helpers.core.device import synchronize
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

device, claims, missing = (pick_device(), Claims(), why_no_compiler())


def repaired(x):
    y = x * 2
    y = torch.where(y.mean() > 0, y - 1, y)
    return y / y.abs().max()


def counting_backend(made, ran):
    def backend(graph, inputs):
        number = len(made)
        made.append(sum(node.op.startswith("call_") for node in graph.graph.nodes))

        def run(*given):
            ran.append(number)
            return graph(*given)

        return run

    return backend
