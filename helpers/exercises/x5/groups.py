"""Groups of ranks that share a sequence, while other ranks have a sequence of their own or none."""

import torch.distributed as dist

LIMIT = 30.0  # seconds, for work that takes one or two: ranks that take longer wait for each other
# Not in a row, so that the number of a rank in its group is not its number in the world.
GROUPS = {1: ((0,), (1,), (2,), (3,)), 2: ((0, 2), (1, 3)), 3: ((0, 1, 3),), 4: ((0, 1, 2, 3),), 5: ((0, 2, 1, 3, 4),)}


def open_groups(ranks: int) -> dist.ProcessGroup | None:
    """Return this rank's new group of `ranks`; None if it has none. All ranks of the world must call."""
    mine = None
    for members in GROUPS[ranks]:
        group = dist.new_group(list(members))
        if dist.get_rank() in members:
            mine = group
    return mine
