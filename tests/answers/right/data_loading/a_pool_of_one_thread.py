# a pool of one thread

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch


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
