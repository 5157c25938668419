# spans split sizes in a view

import torch
import torch.distributed as dist


def zigzag(ranks):
    order = []
    for rank in range(ranks):
        order.append(sorted((rank, 2 * ranks - rank - 1)))
    return order


def cut(tokens, order, rank):
    size = (tokens.shape[1] - 1) // sum(map(len, order))
    spans = [slice(piece * size, (piece + 1) * size) for piece in order[rank]]
    where = torch.arange(tokens.shape[1] - 1, device=tokens.device)
    pick = lambda t: torch.cat([t[..., span] for span in spans], -1)
    return pick(tokens[:, :-1]), pick(tokens[:, 1:]), pick(where)


def exchange(x, split, join):
    moved = x.transpose(0, split).contiguous()
    got = torch.zeros_like(moved)
    sizes = [len(moved) // dist.get_world_size()] * dist.get_world_size()
    dist.all_to_all_single(got, moved, output_split_sizes=sizes, input_split_sizes=sizes)
    return torch.cat([part.transpose(0, split) for part in got.split(sizes)], dim=join)
