# one more worker, seeds from torch

import random
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from helpers import PickledByValue

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset, get_worker_info


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
        return tuple(tensor.to(device, **sent) for tensor in ready)

    pool = ThreadPoolExecutor(1)
    try:
        futures = deque(pool.submit(draw) for _ in range(depth))
        while (batch := futures.popleft().result()) is not None:
            futures.append(pool.submit(draw))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


def pack(documents, length):
    sizes = np.array([len(document) for document in documents])
    filled = -(-sizes.sum() // length) * length
    columns = np.full((4, filled), [[0], [-100], [0], [-1]])
    at = 0
    for number, (document, size) in enumerate(zip(documents, sizes)):
        here = slice(at, at + size)
        columns[0, here] = document
        columns[1, at : at + size - 1] = document[1:]
        columns[3, here] = number
        at += size
    columns = columns.reshape(4, -1, length)
    for row in range(columns.shape[1]):
        for number in np.unique(columns[3, row]):
            where = columns[3, row] == number
            columns[2, row, where] = np.arange(where.sum()) if number >= 0 else 0
    return [torch.from_numpy(column.copy()) for column in columns]


def document_mask(document):
    place = torch.arange(document.shape[1])
    stranger = document.unsqueeze(2).ne(document.unsqueeze(1))
    later = place[None, :] > place[:, None]
    return torch.logical_not(stranger | later).unsqueeze(1)


class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        self.dataset, self.size, self.workers = dataset, batch_size, workers
        self.state = {"seed": seed, "epoch": 0, "samples": 0}

    def load_state_dict(self, state):
        self.state = dict(state)

    def state_dict(self):
        return dict(self.state)

    def __iter__(self):
        order = list(range(len(self.dataset)))
        random.Random(f"{self.state['seed']} {self.state['epoch']}").shuffle(order)
        rest = Subset(self.dataset, order[self.state["samples"] :])
        for batch in DataLoader(rest, self.size, num_workers=self.workers):
            self.state["samples"] += len(batch)
            if self.state["samples"] == len(order):  # the next epoch is next, already
                self.state |= {"epoch": self.state["epoch"] + 1, "samples": 0}
            yield batch
