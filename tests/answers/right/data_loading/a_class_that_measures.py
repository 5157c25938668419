# a class that measures

import threading
import time
from math import ceil

from helpers import PickledByValue

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, get_worker_info


def seed_worker(number):
    worker = get_worker_info()
    worker.dataset.generator = np.random.default_rng([worker.seed, number])


class Loader:
    def __init__(self, dataset, batch_size, step_seconds):
        best = float("inf")
        for i in (0, 1, 2):
            begin = time.monotonic()
            dataset[i]
            best = min(best, time.monotonic() - begin)
        batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
        self.loader = DataLoader(
            dataset,
            batch_sampler=batches,
            num_workers=max(1, ceil(batch_size * best / step_seconds)),
            persistent_workers=True,
            prefetch_factor=3,
            worker_init_fn=PickledByValue(seed_worker),
        )

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        yield from self.loader


def make_loader(dataset, batch_size, step_seconds):
    return Loader(dataset, batch_size, step_seconds)


class Prefetcher:
    def __init__(self, batches, depth, device):
        self.shelf, self.state, self.depth = [], {"over": False, "error": None}, depth
        self.changed = threading.Condition()
        work = (batches, depth, device, self.shelf, self.state, self.changed)
        self.thread = threading.Thread(target=self.fill, args=work, daemon=True)
        self.thread.start()

    @staticmethod
    def fill(batches, depth, device, shelf, state, changed):
        try:
            iterator = iter(batches)
            while True:
                with changed:
                    changed.wait_for(lambda: len(shelf) < depth or state["over"])
                    if state["over"]:
                        return
                batch = next(iterator)
                if device.type == "cuda":
                    batch = [tensor.pin_memory() for tensor in batch]
                batch = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
                with changed:
                    shelf.append(batch)
                    changed.notify_all()
        except BaseException as error:
            with changed:
                state["error"] = error
                changed.notify_all()

    def __iter__(self):
        return self

    def __next__(self):
        with self.changed:
            self.changed.wait_for(lambda: self.shelf or self.state["error"])
            if self.shelf:
                batch = self.shelf.pop(0)
                self.changed.notify_all()
                return batch
            raise self.state["error"]

    def close(self):
        with self.changed:
            self.state["over"] = True
            self.changed.notify_all()
        self.thread.join()


def prefetched(batches, depth, device):
    return Prefetcher(batches, depth, device)


def pack(documents, length):
    rows = []
    for number, document in enumerate(documents):
        position = 0
        for k, token in enumerate(document.tolist()):
            if not rows or len(rows[-1]) == length:
                rows.append([])
                position = 0
            after = int(document[k + 1]) if k + 1 < len(document) else -100
            rows[-1].append((token, after, position, number))
            position += 1
    rows[-1] += [(0, -100, 0, -1)] * (length - len(rows[-1]))
    return torch.tensor(rows).unbind(2)


def document_mask(document):
    rows, length = document.shape
    mask = torch.zeros(rows, 1, length, length, dtype=torch.bool)
    for r in range(rows):
        for i in range(length):
            mask[r, 0, i, : i + 1] = document[r, : i + 1] == document[r, i]
    return mask


class Remaining(Sampler):
    def __init__(self, size, batch_size, key, first):
        generator = torch.Generator().manual_seed(hash(key) % 2**63)
        self.order = torch.randperm(size, generator=generator)
        self.pieces = self.order.split(batch_size)[first:]

    def __len__(self):
        return len(self.pieces)

    def __iter__(self):
        return (piece.tolist() for piece in self.pieces)


class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        self.dataset, self.batch_size, self.seed, self.workers = dataset, batch_size, seed, workers
        self.had = 0  # batches since the beginning of time

    def state_dict(self):
        return {"seed": self.seed, "had": self.had}

    def load_state_dict(self, state):
        self.__dict__.update(state)

    def __iter__(self):
        epoch, first = divmod(self.had, ceil(len(self.dataset) / self.batch_size))
        rest = Remaining(len(self.dataset), self.batch_size, (self.seed, epoch), first)
        for self.had, batch in enumerate(
            DataLoader(self.dataset, batch_sampler=rest, num_workers=self.workers), self.had + 1
        ):
            yield batch
