# vectors and a sort


import numpy as np
import torch
from torch.utils.data import DataLoader


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


def share(blocks, seed, epoch, rank, ranks, worker, workers):
    order = np.argsort(np.random.Generator(np.random.Philox(key=[seed, epoch])).random(blocks))
    steps = blocks // ranks
    return order[rank * steps : (rank + 1) * steps][worker::workers]  # a piece for each rank


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
