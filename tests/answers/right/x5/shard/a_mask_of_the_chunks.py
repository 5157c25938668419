# a mask of the chunks

import torch


def shard(tokens, lengths, order, rank):
    n = torch.tensor(lengths, device=tokens.device)
    at = torch.arange(tokens.size(1), device=tokens.device)
    start = (n.cumsum(0) - n).repeat_interleave(n)
    chunk = torch.div(at, tokens.size(1) // sum(map(len, order)), rounding_mode="floor")
    mine = torch.isin(chunk, torch.tensor(order[rank], device=tokens.device))
    last = torch.isin(at + 1, n.cumsum(0))
    targets = torch.cat([tokens[:, 1:], tokens[:, :1]], 1).masked_fill(last, -100)
    return tokens[:, mine], targets[:, mine], (at - start)[mine]
