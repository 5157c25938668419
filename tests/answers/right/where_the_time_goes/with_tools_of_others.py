# with tools of others

from fractions import Fraction

import numpy as np


def operation_seconds(flops, nbytes, peak, bandwidth, launch):
    seconds = np.array([flops / peak, nbytes / bandwidth, launch])
    return seconds[:2].max() + seconds[2], ("compute", "memory", "launch")[int(seconds.argmax())]


def block_flops(batch, length, width, inner, kv_width, gated, convention):
    half = Fraction(1, 2) if convention == "causal half" else 1
    tokens = 2 * batch * length
    attention = int(half * tokens * length * width)
    narrow, square = tokens * width * kv_width, tokens * width**2
    mlp = tokens * width * inner * (2 + bool(gated))
    keys = ("q", "k", "v", "scores", "values", "out", "mlp")
    return dict(zip(keys, (square, narrow, narrow, attention, attention, square, mlp)))


def step_time(operations, launch, queued):
    if not operations:
        return 0, 0
    seconds, waits = (np.array(column) for column in zip(*operations))
    if not queued:
        total = seconds.sum() + launch * len(seconds)
        return total, 1 - seconds.sum() / total
    end, at = 0.0, 0
    for part in np.split(np.arange(len(seconds)), np.flatnonzero(waits) + 1):  # the host waits between two parts
        launched = end + launch * np.arange(1, len(part) + 1)
        before = np.concatenate([[0.0], np.cumsum(seconds[part])])
        if len(part):  # the last operation ends as late as any launch and all work after it demand
            end = (launched + before[-1] - before[:-1]).max()
    return end, 1 - seconds.sum() / end


def utilization(parameters, layers, width, length, tokens, seconds, peak, recomputed):
    per_token = np.array([6, 12 * layers]) @ np.array([parameters, width * length], dtype=float)
    could = seconds * peak
    return float(per_token * tokens / could), float((per_token * tokens + recomputed) / could)
