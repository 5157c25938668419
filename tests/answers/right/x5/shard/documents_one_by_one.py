# documents one by one

import torch


def shard(tokens, lengths, order, rank):
    parts = tokens.split(lengths, dim=1)
    targets = torch.cat([torch.nn.functional.pad(part[:, 1:], (0, 1), value=-100) for part in parts], dim=1)
    places = torch.cat([torch.arange(part.shape[1], device=tokens.device) for part in parts])
    size = tokens.shape[1] // (len(order) * len(order[0]))
    mine = torch.cat([torch.arange(i * size, i * size + size, device=tokens.device) for i in order[rank]])
    return tuple(x.index_select(-1, mine) for x in (tokens, targets, places))
