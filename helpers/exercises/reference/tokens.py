"""The reference answers of solutions/08c_tokens.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import mmap
import pickle
import tempfile
import time
import warnings
from pathlib import Path
from pydoc_data.topics import topics
from helpers import PickledByValue, PickledStream, Prediction, TokenFile, check, explore, hint, human_bytes, padded_and_packed, script_as_notebook, show, show_table, sign_of_life
import numpy as np
import psutil
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info



def pack(documents, length):
    lengths = torch.tensor([len(document) for document in documents])
    ends = lengths.cumsum(0)
    ids = torch.cat(documents)
    targets = ids.roll(-1)
    targets[ends - 1] = -100
    document = torch.repeat_interleave(lengths)  # 0, 0, 0, 1, 1, ...
    place = torch.arange(len(ids))
    positions = place - torch.maximum((ends - lengths)[document], place // length * length)

    def rows(tensor, filler):
        return F.pad(tensor, (0, -len(tensor) % length), value=filler).view(-1, length)

    return rows(ids, 0), rows(targets, -100), rows(positions, 0), rows(document, -1)


def document_mask(document):
    same = document[:, :, None] == document[:, None, :]  # (rows, from, to)
    return same.tril()[:, None]


def share(blocks, seed, epoch, rank, ranks, worker, workers):
    order = np.random.default_rng([seed, epoch]).permutation(blocks).tolist()
    steps = blocks // ranks
    mine = order[rank : steps * ranks : ranks]
    return mine[worker::workers]


class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        self.dataset, self.batch_size, self.workers = dataset, batch_size, workers
        self.load_state_dict({"seed": seed, "epoch": 0, "had": 0})

    def __iter__(self):
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.dataset)).tolist()
        rest = range(self.had * self.batch_size, len(order), self.batch_size)
        left = [order[start : start + self.batch_size] for start in rest]
        for batch in DataLoader(self.dataset, batch_sampler=left, num_workers=self.workers):
            self.had += 1  # the loop has it now, and may save
            yield batch
        self.epoch, self.had = self.epoch + 1, 0

    def state_dict(self):
        return {"seed": self.seed, "epoch": self.epoch, "had": self.had}

    def load_state_dict(self, state):
        self.seed, self.epoch, self.had = state["seed"], state["epoch"], state["had"]
