"""The reference answers of solutions/07b_traces.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import functools
import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from helpers import COLORS, Claims, Prediction, SmallGPT, benchmark, check, compare, device_name, english, explore, gpu_trace, gpu_trace_source, hint, pick_device, show, time_line
from helpers.core.device import synchronize
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

device = pick_device()
activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == 'cuda' else [])]
claims = Claims()


def self_times(events):
    threads = defaultdict(list)  # (pid, tid) -> (start, -duration, name) in nanoseconds
    for event in events:
        if event["ph"] == "X":
            start, duration = round(1000 * event["ts"]), round(1000 * event["dur"])
            threads[event["pid"], event["tid"]].append((start, -duration, event["name"]))
    own = Counter()
    for spans in threads.values():
        around = []  # (end, name) of the spans that are open, the innermost last
        for start, minus, name in sorted(spans):
            while around and around[-1][0] <= start:
                around.pop()
            if around:
                own[around[-1][1]] += minus
            own[name] -= minus
            around.append((start - minus, name))
    return {name: nanoseconds / 1000 for name, nanoseconds in own.items()}


def signs(events):
    spans = [event for event in events if event["ph"] == "X"]
    step = next(e for e in spans if e["name"] == "step" and e.get("cat") == "user_annotation")
    end = step["ts"] + step["dur"]
    inside = [e for e in spans if step["ts"] <= e["ts"] < end]
    mine = [e for e in inside if (e["pid"], e["tid"]) == (step["pid"], step["tid"])]
    operations = [e for e in mine if e["name"].startswith("aten::")]
    kernels = [e for e in inside if e.get("cat") == "kernel"]
    copies = [e for e in operations if e["name"] == "aten::copy_"]
    reads = [e for e in operations if e["name"] == "aten::item"]
    transfers = [e for e in inside if e.get("cat") == "gpu_memcpy"]
    waits = [e["ts"] for e in mine if e["name"] == "cudaStreamSynchronize"]
    if kernels:  # a value in host memory is read without waiting
        reads = [e for e in reads if any(e["ts"] <= at < e["ts"] + e["dur"] for at in waits)]

    def covered(some):  # microseconds in which at least one of them runs
        total, reached = 0, -math.inf
        for event in sorted(some, key=lambda e: e["ts"]):
            until = event["ts"] + event["dur"]
            total += max(0, until - max(event["ts"], reached))
            reached = max(reached, until)
        return total

    useful = covered(kernels) if kernels else covered(operations) - covered(copies + reads)
    return {
        "items": len(reads),
        "copying": (covered(copies + transfers + kernels) - covered(kernels)) / step["dur"],
        "idle": 1 - useful / step["dur"],
    }


def diagnose(signs):
    if signs["idle"] <= 0.3:
        return "healthy"
    if signs["items"] > 10:
        return "synchronizes"
    return "copies" if signs["copying"] > 0.3 else "tiny"


def accuracy(model, batches):
    right = samples = 0
    with torch.no_grad():
        for inputs, labels in batches:
            right = right + (model(inputs).argmax(1) == labels).sum()  # stays a tensor: nothing waits for it
            samples += len(labels)
    return right.item() / samples
