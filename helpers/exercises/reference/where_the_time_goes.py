"""The reference answers of solutions/07_where_the_time_goes.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
from collections import Counter
from helpers import COLORS, Claims, Prediction, SmallGPT, benchmark, check, compare, count_flops, device_name, english, explore, find_gpu, hint, kept_roofline, measure_roofline, model_flops, numbers_beyond_cache, pick_device, profile_step, roofline_figure, show, show_table, works_of
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()


def operation_seconds(flops, nbytes, peak, bandwidth, launch):
    times = {"compute": flops / peak, "memory": nbytes / bandwidth, "launch": launch}
    return max(times["compute"], times["memory"]) + launch, max(times, key=times.get)


def block_flops(batch, length, width, inner, kv_width, gated, convention):
    tokens = batch * length
    pairs = 2 * batch * length**2 * width  # each query with each key; as much again for the values
    if convention == "causal half":
        pairs //= 2
    matrices = 3 if gated else 2
    return {
        "q": 2 * tokens * width * width,
        "k": 2 * tokens * width * kv_width,
        "v": 2 * tokens * width * kv_width,
        "scores": pairs,
        "values": pairs,
        "out": 2 * tokens * width * width,
        "mlp": 2 * tokens * width * inner * matrices,
    }


def step_time(operations, launch, queued):
    host = done = busy = 0.0  # when the host can launch again; when the processor has done all of its work so far
    for seconds, waits in operations:
        host += launch
        done = max(done, host) + seconds
        busy += seconds
        if waits or not queued:
            host = done
    return done, 1 - busy / done if done else 0.0


def utilization(parameters, layers, width, length, tokens, seconds, peak, recomputed):
    needed = (6 * parameters + 12 * layers * width * length) * tokens
    return needed / (seconds * peak), (needed + recomputed) / (seconds * peak)
