# two aranges

import torch


def shard(tokens, rank, ranks):
    n = tokens.shape[1] - 1
    if n % (2 * ranks):
        raise ValueError(f"{n} tokens cannot be cut into {2 * ranks} equal chunks")
    c = n // (2 * ranks)
    first, second = rank * c, (2 * ranks - 1 - rank) * c
    positions = torch.cat([torch.arange(i, i + c, device=tokens.device) for i in (first, second)])
    return tokens[:, :-1].index_select(1, positions), tokens[:, 1:].index_select(1, positions), positions
