# the mean of a micro-batch times its share of targets

import torch
import torch.nn.functional as F


def token_step(model, optimizer, ids, targets, micro_batch):
    optimizer.zero_grad()
    everything = int(torch.count_nonzero(targets != -100))
    total = torch.zeros((), dtype=torch.float64)
    for xs, ys in zip(ids.split(micro_batch), targets.split(micro_batch)):
        mine = int((ys != -100).sum())
        if mine == 0:
            continue  # its mean would be NaN
        loss = F.cross_entropy(model(xs).permute(0, 2, 1), ys)
        (loss * (mine / everything)).backward()
        total += loss.detach() * mine
    optimizer.step()
    return total / everything
