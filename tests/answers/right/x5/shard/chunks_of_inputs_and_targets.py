# chunks of inputs and targets

import torch


def shard(tokens, rank, ranks):
    x, y = tokens[:, :-1], tokens[:, 1:]
    pieces = 2 * ranks
    if x.shape[1] % pieces != 0:
        raise ValueError("the sequence does not divide by twice the number of ranks")
    where = torch.arange(x.shape[1], device=tokens.device)
    mine = lambda t: torch.cat([t.chunk(pieces, -1)[i] for i in (rank, pieces - 1 - rank)], dim=-1)
    return mine(x), mine(y), mine(where)
