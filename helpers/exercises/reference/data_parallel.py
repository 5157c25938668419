"""The reference answers of solutions/11_data_parallel.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import time
from helpers import CATEGORIES, AllReduceLog, Claims, Collectives, MemoryMeter, Messages, Prediction, SmallGPT, category_bars, check, device_name, digits, explore, hint, human_bytes, pick_device, rank_device, ranks_device, run_ranks, show, show_table, torchrun
from helpers.core.device import synchronize
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = pick_device()
MiB = 2 ** 20
pair = ranks_device(2)
claims = Claims(device=pair)


def ring_all_reduce(vector):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = vector.tensor_split(n)
    for step in range(2 * (n - 1)):
        leaving, ours = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        arriving = torch.empty_like(ours)
        send = dist.P2POp(dist.isend, leaving, (rank + 1) % n)
        receive = dist.P2POp(dist.irecv, arriving, (rank - 1) % n)
        for request in dist.batch_isend_irecv([send, receive]):
            request.wait()
        if step < n - 1:
            ours += arriving
        else:
            ours.copy_(arriving)


def fit_link(sweep):
    nbytes, seconds = np.array(sweep).T
    seconds_per_byte, alpha = np.polyfit(nbytes, seconds, 1, w=1 / seconds)  # relative errors have equal weight
    return max(0.0, float(alpha)), float(1 / seconds_per_byte)


class BucketedAverage:
    def __init__(self, model, bucket_bytes):
        self.buckets = [[]]
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            if sum(q.nbytes for q in self.buckets[-1]) >= bucket_bytes:
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self.arrived)
        self.ready, self.sent = set(), []

    def arrived(self, p):
        """Called when the gradient of p is complete."""
        self.ready.add(p)
        while len(self.sent) < len(self.buckets) and self.ready.issuperset(self.buckets[len(self.sent)]):
            self.send_next()

    def send_next(self):
        """Send the next bucket, full or not, and do not wait for it."""
        bucket = self.buckets[len(self.sent)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        """Send the buckets that are left, wait for all results, and write the averages into `.grad`."""
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, (flat, request) in zip(self.buckets, self.sent, strict=True):
            request.wait()
            flat /= dist.get_world_size()
            for p, gradient in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = gradient.view_as(p)
        self.ready, self.sent = set(), []
