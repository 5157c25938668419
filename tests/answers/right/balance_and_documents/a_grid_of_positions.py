# a grid of positions

import torch
import torch.distributed as dist


def zigzag(ranks):
    half = torch.arange(ranks)
    return torch.stack((half, 2 * ranks - 1 - half), 1).tolist()


def cut(tokens, order, rank):
    grid = torch.arange(tokens.shape[1] - 1, device=tokens.device).view(sum(map(len, order)), -1)
    positions = grid[order[rank]].flatten()
    return tokens[:, :-1].index_select(1, positions), tokens[:, 1:].index_select(1, positions), positions


def exchange(x, split, join):
    n = dist.get_world_size()
    slices = x.unflatten(split, (n, -1)).movedim(split, 0).contiguous()
    result = torch.empty_like(slices)
    dist.all_to_all_single(result, slices)
    return result.movedim(0, join).flatten(join, join + 1)
