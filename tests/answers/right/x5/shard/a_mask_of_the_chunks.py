# a mask of the chunks

import torch


def shard(tokens, rank, ranks):
    n = tokens.size(1) - 1
    if n % (2 * ranks):
        raise ValueError(n)
    at = torch.arange(n, device=tokens.device)
    chunk = torch.div(at, n // (2 * ranks), rounding_mode="floor")
    positions = at[(chunk == rank) | (chunk + rank == 2 * ranks - 1)]
    return tokens[:, positions], tokens[:, positions + 1], positions
