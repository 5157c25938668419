"""The reference answers of solutions/18b_failures.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import copy
import math
import os
import random
import re
import signal
import statistics
import tempfile
from collections import Counter
from datetime import timedelta
from helpers import COLORS, Claims, Fleet, Prediction, RankLogWriter, break_here, check, checksum, device_name, digits, explore, hint, made_counters, made_job, pick_device, rank_lanes, read_logs, run_ranks, show, show_table, spike_figure, torchrun_job
import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
claims = Claims(device=torch.device('cpu'))


class Preemption:
    def __init__(self):
        self.noticed = False
        self.before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def note(self, number, frame):
        self.noticed = True

    def flag(self):
        return torch.tensor([float(self.noticed)])

    def agreed(self, total):
        return float(total) > 0

    def close(self):
        for number, handler in self.before.items():
            signal.signal(number, handler)


def diagnose(logs):
    for rank, log in enumerate(logs):
        if log.exit_code == -9:
            return "killed", rank
    if any(log.exit_code for log in logs):
        waits = [log.calls and log.calls[-1].answered is None for log in logs]
        return "hung", next(rank for rank, wait in enumerate(waits) if not wait)
    for step in zip(*(log.checksums for log in logs), strict=False):
        usual = Counter(step).most_common(1)[0][0]
        for rank, value in enumerate(step):
            if value != usual:
                return "wrong", rank
    working = []
    for log in logs:
        pairs = zip(log.calls, log.calls[1:], strict=False)
        working.append(statistics.median(after.asked - before.answered for before, after in pairs))
    slowest = max(working)
    if slowest > 1.5 * statistics.median(working):
        return "slow", working.index(slowest)
    return "healthy", None


def suspect(nodes):
    if None in nodes:
        return "dead", nodes.index(None)
    fewest = min(node.calls for node in nodes)
    if fewest < max(node.calls for node in nodes):
        return "hung", [node.calls for node in nodes].index(fewest)
    errors = [node.errors_now - node.errors_before for node in nodes]
    if max(errors) > 100:
        return "link", errors.index(max(errors))
    for index, node in enumerate(nodes):
        stage = [other for other in nodes if other.stage == node.stage]
        if node.checksum != Counter(other.checksum for other in stage).most_common(1)[0][0]:
            return "corrupt", index
        if node.work > 1.2 * statistics.median(other.work for other in stage):
            return "slow", index
    return "healthy", None
