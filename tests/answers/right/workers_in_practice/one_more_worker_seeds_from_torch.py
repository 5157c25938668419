# one more worker, seeds from torch

import time

from helpers import PickledByValue

import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info


def make_loader(dataset, batch_size, step_seconds):
    begin = time.perf_counter()
    for i in range(8):
        dataset[-1 - i]
    a_batch = batch_size * (time.perf_counter() - begin) / 8
    workers = int(a_batch // step_seconds) + 1
    fresh = PickledByValue(lambda number: get_worker_info().dataset.reseed(torch.initial_seed() % 2**63))
    options = {"num_workers": workers, "persistent_workers": True, "prefetch_factor": 2, "worker_init_fn": fresh}
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=False, in_order=True, **options)


def finished_batch(images, labels, indices, rotate):
    mine, theirs = default_collate([(images[i], labels[i]) for i in indices])
    angles = torch.lerp(torch.tensor(-20.0), torch.tensor(20.0), torch.rand(len(theirs)))
    return rotate(images=mine, degrees=angles), theirs
