# columns and subsets

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset


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


def share(blocks, seed, epoch, rank, ranks, worker, workers):
    order = list(range(blocks))
    random.Random(f"{seed} {epoch}").shuffle(order)
    mine = []
    for step in range(blocks // ranks):
        block = order[step * ranks + ranks - 1 - rank]
        if step % workers == worker:
            mine.append(block)
    return mine


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
