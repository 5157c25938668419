"""Wrong and right answers for the practice task of data loading."""

from . import Mutant

LOADER, PACE, SAME, FRESH = "data_loading.loader", "keeps_pace", "same_samples", "fresh_numbers"
CALL = "    return DataLoader(\n        dataset,\n        batch_size,\n"
KEPT = '    dataset.__class__ = type("Kept", (type(dataset),), {{"__getitem__": lambda self, i: {}}})\n'
WORKERS = "workers = math.ceil(batch_size * statistics.median(reads) / step_seconds)"


def one(name: str, rejected_by: str, old: str, new: str) -> Mutant:
    return Mutant(name, LOADER, rejected_by, ((old, new),))


MUTANTS = [
    Mutant("the slow loader", LOADER, PACE, (("        num_workers=workers,\n        persistent_workers=True,\n", ""),)),
    one("one worker", PACE, WORKERS, "workers = 1"),
    one("always three", PACE, WORKERS, "workers = 3"),
    one("always four", PACE, WORKERS, "workers = 4"),
    one("always eight", PACE, WORKERS, "workers = 8"),
    one("twice the workers", PACE, WORKERS, WORKERS.replace("math.ceil(", "2 * math.ceil(")),
    one("capped at two cores", PACE, WORKERS, WORKERS.replace("math.ceil(", "min(2, math.ceil(") + ")"),
    one("batch forgotten in the rule", PACE, "batch_size * statistics", "statistics"),
    one("the rule upside down", PACE, WORKERS, "workers = math.ceil(step_seconds / (batch_size * statistics.median(reads)))"),
    one("workers anew in each epoch", PACE, "persistent_workers=True", "persistent_workers=False"),
    one("sixteen batches in hand", PACE, "shuffle=True", "shuffle=True, prefetch_factor=16"),
    one("larger batches", PACE, CALL, "    return DataLoader(dataset, 2 * batch_size,\n"),
    one("the store made quick", PACE, "    reads = []\n", "    reads = []\n    dataset.latency = 0.001\n"),
    one("measures with half of the files", PACE, "range(5)", "range(len(dataset) // 2)"),
    one("all files read beforehand", PACE, CALL,
        "    files = [dataset[i] for i in range(len(dataset))]\n" + KEPT.format("files[i]") + CALL),
    one("each worker keeps what it has read", PACE, CALL,
        "    read, known = type(dataset).__getitem__, {}\n"
        + KEPT.format("known[i] if i in known else known.setdefault(i, read(self, i))") + CALL),
    one("augmentation kept with the image", FRESH, CALL,
        "    read, known = type(dataset).__getitem__, {}\n"
        + KEPT.format("known[i] if i in known else known.setdefault(i, read(self, i))") + CALL),
    Mutant("an epoch kept in memory", LOADER, PACE, (("    return DataLoader(", "    return list(DataLoader("),
        ("PickledByValue(own_numbers),\n    )", "PickledByValue(own_numbers),\n    ))"))),
    one("nothing shuffled", SAME, "        shuffle=True,\n", ""),
    one("the last batch dropped", SAME, "shuffle=True", "shuffle=True, drop_last=True"),
    one("one order for all epochs", SAME, "shuffle=True", "sampler=torch.randperm(len(dataset)).tolist()"),
    one("drawn with replacement", SAME, "shuffle=True", "sampler=torch.utils.data.RandomSampler(dataset, replacement=True)"),
    one("smaller batches", SAME, CALL, "    return DataLoader(dataset, max(1, batch_size // 2),\n"),
    one("half of the files", SAME, "shuffle=True",
        "sampler=torch.utils.data.SubsetRandomSampler(range(len(dataset) // 2))"),
    one("the generator copied", FRESH, "worker_init_fn=PickledByValue(own_numbers)", "worker_init_fn=None"),
    one("the same seed in each worker", FRESH, "reseed(info.seed)", "reseed(1234)"),
    one("the seed of the main process", FRESH, "reseed(info.seed)", "reseed(info.seed - info.id)"),
    one("numpy's global generator", FRESH, "info.dataset.reseed(info.seed)", "np.random.seed(info.seed % 2**32)"),
    one("augmentation off", FRESH, "    reads = []\n", "    reads = []\n    dataset.augmented = False\n"),
    Mutant("own seeds, the same in each epoch", LOADER, FRESH, (("reseed(info.seed)", "reseed(worker_id)"),
        ("persistent_workers=True", "persistent_workers=False"))),
]  # fmt: skip

RIGHT = {
    "a class that measures": """
import time
from math import ceil

import numpy as np
from helpers import PickledByValue
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
            dataset, batch_sampler=batches, num_workers=max(1, ceil(batch_size * best / step_seconds)),
            persistent_workers=True, prefetch_factor=3, worker_init_fn=PickledByValue(seed_worker),
        )

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        yield from self.loader


def make_loader(dataset, batch_size, step_seconds):
    return Loader(dataset, batch_size, step_seconds)
""",
    "one more worker, seeds from torch": """
import time

import torch
from helpers import PickledByValue
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
""",
}
