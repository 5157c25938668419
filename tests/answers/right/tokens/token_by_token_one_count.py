# token by token, one count

from math import ceil

import torch
from torch.utils.data import DataLoader, Sampler


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


def share(blocks, seed, epoch, rank, ranks, worker, workers):
    generator = torch.Generator().manual_seed(hash((seed, epoch)) % 2**63)
    order = torch.randperm(blocks, generator=generator)
    table = order[: blocks // ranks * ranks].view(-1, ranks)  # (steps, ranks)
    return [int(block) for block in table[worker::workers, rank]]


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
