# slices of lists

import torch
import torch.distributed as dist


def zigzag(ranks):
    pieces = list(range(2 * ranks))
    return [[pieces[i], pieces[-1 - i]] for i in range(ranks)]


def cut(tokens, order, rank):
    n = sum(len(held) for held in order)
    inputs, labels = tokens[:, :-1].chunk(n, 1), tokens[:, 1:].chunk(n, 1)
    size = inputs[0].shape[1]
    positions = torch.tensor([piece * size + i for piece in order[rank] for i in range(size)], device=tokens.device)
    ids, wanted = (torch.cat([parts[piece] for piece in order[rank]], 1) for parts in (inputs, labels))
    return ids, wanted, positions


def exchange(x, split, join):
    n = dist.get_world_size()
    size = x.shape[split] // n
    flat = torch.cat([x.narrow(split, i * size, size).reshape(-1) for i in range(n)])
    received = flat.new_empty(flat.shape)
    dist.all_to_all_single(received, flat)
    shape = list(x.shape)
    shape[split] = size
    return torch.cat([part.view(shape) for part in received.chunk(n)], join)
