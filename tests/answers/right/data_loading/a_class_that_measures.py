# a class that measures

import threading
import time
from math import ceil

from helpers import PickledByValue

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, get_worker_info


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
