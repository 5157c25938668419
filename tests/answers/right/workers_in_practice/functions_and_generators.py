# functions and generators

import itertools
import time

from helpers import PickledByValue

import torch
from torch.utils.data import DataLoader, get_worker_info


def make_loader(dataset, batch_size, step_seconds):
    def timed(i):
        begin = time.perf_counter()
        dataset[i]
        return time.perf_counter() - begin

    a_read = sorted(map(timed, range(7)))[3]
    needed = next(n for n in itertools.count(1) if n * step_seconds >= batch_size * a_read)
    reseed = PickledByValue(lambda _: get_worker_info().dataset.reseed(get_worker_info().seed))
    return DataLoader(dataset, batch_size, True, num_workers=needed, persistent_workers=True, worker_init_fn=reseed)


def finished_batch(images, labels, indices, rotate):
    angles = torch.distributions.Uniform(-20.0, 20.0).sample((len(indices),))
    return rotate(torch.stack([images[i] for i in indices]), angles), torch.tensor([int(labels[i]) for i in indices])
