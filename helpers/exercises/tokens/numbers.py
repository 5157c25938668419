"""Data sets whose samples are their own numbers, for the probe of the loader that goes on in mid-epoch."""

import torch
from torch.utils.data import Dataset, get_worker_info


class Numbers(Dataset):
    """Sample i is i.

    Attributes:
        reads: how often each sample was read, by whichever process.
        readers: by sample, the worker that read it last: 1, 2, ..., and 0 for the main process.
    """

    def __init__(self, count: int) -> None:
        self.reads = torch.zeros(count, dtype=torch.int64).share_memory_()
        self.readers = torch.zeros(count, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, i: int) -> int:
        worker = get_worker_info()
        self.reads[i] += 1
        self.readers[i] = 0 if worker is None else worker.id + 1
        return int(i)


class Named(Numbers):
    """Sample i is the pair of i and its name."""

    def __getitem__(self, i: int) -> tuple[int, str]:
        return super().__getitem__(i), f"sample-{i}"
