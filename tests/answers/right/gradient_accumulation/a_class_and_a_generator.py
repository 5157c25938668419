# a class and a generator

import contextlib

import torch
import torch.nn.functional as F


class Accumulator:
    def __init__(self, model, weight):
        self.model, self.weight, self.loss = model, weight, 0.0

    def add(self, x, y):
        outputs = self.model(x)
        loss = F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1), reduction="sum") * self.weight
        loss.backward()
        with torch.no_grad():
            self.loss += loss
        return self


def pieces(size, *tensors):
    for start in range(0, len(tensors[0]), size):
        yield tuple(tensor.narrow(0, start, min(size, len(tensor) - start)) for tensor in tensors)


def accumulate(model, x, y, micro_batch):
    accumulator = Accumulator(model, 1 / len(x))
    for xs, ys in pieces(micro_batch, x, y):
        accumulator.add(xs, ys)
    return accumulator.loss


def accumulate_tokens(model, ids, targets, micro_batch):
    accumulator = Accumulator(model, 1 / torch.count_nonzero(targets + 100).item())
    for xs, ys in pieces(micro_batch, ids, targets):
        accumulator.add(xs, ys)
    return accumulator.loss


def largest_micro_batch(peak_bytes, budget, most):
    # in whole numbers: half of `most` rows cost `two`
    two = peak_bytes(most) - peak_bytes(most // 2)
    fixed = peak_bytes(most) - 2 * two
    rows = min((budget - fixed) * (most // 2) // two, most)
    return rows if rows >= 1 and peak_bytes(rows) <= budget else 0


def accumulate_replica(replica, x, y, micro_batch):
    seen, mean = 0, 0.0
    for xs, ys in pieces(micro_batch, x, y):
        seen += len(xs)
        with contextlib.ExitStack() as stack:
            if seen < len(x):
                stack.enter_context(replica.no_sync())
            loss = torch.nn.functional.cross_entropy(replica(xs), ys) * len(xs)
            (loss / len(x)).backward()
        mean += loss.item() / len(x)
    return mean
