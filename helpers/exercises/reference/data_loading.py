"""The reference answers of solutions/08_data_loading.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import math
import mmap
import os
import queue
import random
import statistics
import tempfile
import threading
import time
import warnings
from pathlib import Path
from pydoc_data.topics import topics
from helpers import COLOURS, Claims, DigitFiles, LoaderTimeline, PickledByValue, Prediction, SmallCNN, TokenFile, benchmark, check, compare, decode, explore, hint, human_bytes, loader_path, padded_and_packed, pick_device, rotate, script_as_notebook, show, sign_of_life
import numpy as np
import psutil
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info



def prefetched(batches, depth, device):
    ready, room, over = queue.SimpleQueue(), threading.Semaphore(depth), threading.Event()

    def send(tensor):
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    def draw():
        try:
            source = iter(batches)
            while room.acquire() and not over.is_set():  # room for one batch more
                ready.put((tuple(send(tensor) for tensor in next(source)), None))
        except Exception as error:  # StopIteration, too: it says that these were all
            ready.put((None, error))

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            if error is not None:
                break
            room.release()  # the loop takes this one
            yield batch
        if not isinstance(error, StopIteration):
            raise error
    finally:  # when the generator is closed as well
        over.set()
        room.release()
        thread.join()


def make_loader(dataset, batch_size, step_seconds):
    def own_numbers(worker_id):
        info = get_worker_info()
        info.dataset.reseed(info.seed)

    reads = []
    for i in range(5):
        start = time.perf_counter()
        dataset[i]
        reads.append(time.perf_counter() - start)
    workers = math.ceil(batch_size * statistics.median(reads) / step_seconds)
    return DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        worker_init_fn=PickledByValue(own_numbers),
    )


def pack(documents, length):
    lengths = torch.tensor([len(document) for document in documents])
    ends = lengths.cumsum(0)
    ids = torch.cat(documents)
    targets = ids.roll(-1)
    targets[ends - 1] = -100
    document = torch.repeat_interleave(lengths)  # 0, 0, 0, 1, 1, ...
    place = torch.arange(len(ids))
    positions = place - torch.maximum((ends - lengths)[document], place // length * length)

    def rows(tensor, filler):
        return F.pad(tensor, (0, -len(tensor) % length), value=filler).view(-1, length)

    return rows(ids, 0), rows(targets, -100), rows(positions, 0), rows(document, -1)


def document_mask(document):
    same = document[:, :, None] == document[:, None, :]  # (rows, from, to)
    return same.tril()[:, None]


class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        self.dataset, self.batch_size, self.workers = dataset, batch_size, workers
        self.load_state_dict({"seed": seed, "epoch": 0, "had": 0})

    def __iter__(self):
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.dataset)).tolist()
        rest = range(self.had * self.batch_size, len(order), self.batch_size)
        left = [order[start : start + self.batch_size] for start in rest]
        for batch in DataLoader(self.dataset, batch_sampler=left, num_workers=self.workers):
            self.had += 1  # the loop has it now, and may save
            yield batch
        self.epoch, self.had = self.epoch + 1, 0

    def state_dict(self):
        return {"seed": self.seed, "epoch": self.epoch, "had": self.had}

    def load_state_dict(self, state):
        self.seed, self.epoch, self.had = state["seed"], state["epoch"], state["had"]
