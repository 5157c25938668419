# functions and generators

import itertools
import queue
import threading
import time

from helpers import PickledByValue

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

END = object()


def prefetched(batches, depth, device):
    # tickets: one for each batch that may be drawn; None calls the thread home
    tickets, results = queue.Queue(), queue.Queue()
    for _ in range(depth):
        tickets.put(True)

    def to_device(tensor):
        return tensor.pin_memory().to(device=device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    def draw():
        try:
            for batch in itertools.chain.from_iterable([batches] if tickets.get() else []):
                results.put(tuple(map(to_device, batch)))
                if not tickets.get():
                    return
            results.put(END)
        except Exception as error:
            results.put(error)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        while (result := results.get()) is not END:
            if isinstance(result, Exception):
                raise result
            tickets.put(True)
            yield result
    finally:
        while not tickets.empty():
            try:
                tickets.get_nowait()
            except queue.Empty:
                break
        tickets.put(None)
        thread.join()


def make_loader(dataset, batch_size, step_seconds):
    def timed(i):
        begin = time.perf_counter()
        dataset[i]
        return time.perf_counter() - begin

    a_read = sorted(map(timed, range(7)))[3]
    needed = next(n for n in itertools.count(1) if n * step_seconds >= batch_size * a_read)
    reseed = PickledByValue(lambda _: get_worker_info().dataset.reseed(get_worker_info().seed))
    return DataLoader(dataset, batch_size, True, num_workers=needed, persistent_workers=True, worker_init_fn=reseed)


def runs(flags):
    place = torch.arange(len(flags))
    return place - torch.where(flags, place, 0).cummax(0).values


def pack(documents, length):
    ids = torch.cat(documents)
    begins = torch.cat([torch.arange(len(d)) == 0 for d in documents])
    missing = (length - len(ids)) % length
    document = begins.cumsum(0) - 1
    last = begins.roll(-1)
    last[-1] = True
    targets = torch.where(last, torch.tensor(-100), ids.roll(-1))
    positions = runs(begins | (torch.arange(len(ids)) % length == 0))
    fillers = ((ids, 0), (targets, -100), (positions, 0), (document, -1))
    return tuple(torch.cat([t, t.new_full((missing,), f)]).reshape(-1, length) for t, f in fillers)


def document_mask(document):
    one_hot = torch.nn.functional.one_hot(document + 1).float()
    return ((one_hot @ one_hot.transpose(1, 2)).tril() > 0.5).unsqueeze(1)


class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        self.make = lambda batches: DataLoader(dataset, batch_sampler=batches, num_workers=workers)
        self.count, self.batch_size, self.seed, self.epoch, self.position = len(dataset), batch_size, seed, 0, 0

    def order(self):
        keys = np.random.Generator(np.random.Philox(key=[self.seed, self.epoch])).random(self.count)
        return np.argsort(keys)

    def __iter__(self):
        cuts = range(self.batch_size, self.count, self.batch_size)
        batches = [piece.tolist() for piece in np.split(self.order(), cuts)]
        for batch in self.make(batches[self.position :]):
            self.position += 1
            yield batch
        self.epoch += 1
        self.position = 0

    def state_dict(self):
        return vars(self) | {"make": None}

    def load_state_dict(self, state):
        vars(self).update({name: value for name, value in state.items() if value is not None})
