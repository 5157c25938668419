# one more worker, seeds from torch

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from helpers import PickledByValue

import torch
from torch.utils.data import DataLoader, get_worker_info


def make_loader(dataset, batch_size, step_seconds):
    begin = time.perf_counter()
    for i in range(8):
        dataset[-1 - i]
    a_batch = batch_size * (time.perf_counter() - begin) / 8
    workers = int(a_batch // step_seconds) + 1
    fresh = PickledByValue(lambda number: get_worker_info().dataset.reseed(torch.initial_seed() % 2**63))
    options = {"num_workers": workers, "persistent_workers": True, "prefetch_factor": 2, "worker_init_fn": fresh}
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=False, in_order=True, **options)


def prefetched(batches, depth, device):
    sent = {"non_blocking": True} if device.type == "cuda" else {}
    iterator = []

    def draw():
        if not iterator:
            iterator.append(iter(batches))
        batch = next(iterator[0], None)
        if batch is None:
            return None
        ready = map(lambda tensor: tensor.pin_memory(), batch) if sent else batch
        with torch.cuda.device(device) if sent else nullcontext():
            return tuple(tensor.to(device, **sent) for tensor in ready)

    pool = ThreadPoolExecutor(1)
    try:
        futures = deque(pool.submit(draw) for _ in range(depth))
        while (batch := futures.popleft().result()) is not None:
            futures.append(pool.submit(draw))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)
