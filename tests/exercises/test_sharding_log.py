"""A log tells the dimensions of a mesh apart."""

from helpers import run_ranks
from helpers.exercises.sharding.collective_log import CollectiveLog

import torch
import torch.distributed as dist


def two_groups():
    rank = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    with CollectiveLog() as log:
        dist.all_reduce(torch.ones(4), group=pairs[rank // 2])
        log.note("between")
        dist.broadcast(torch.ones(8), 0)
    return log.events, log.volume_among([0, 1]), log.volume_among([0, 1, 2, 3])


def test_bytes_are_told_apart_by_the_ranks_that_took_part():
    ranks = run_ranks(two_groups, 4, device="cpu", measure=False).results
    for rank, (events, pair, everybody) in enumerate(ranks):
        assert [event.name for event in events] == ["all_reduce", "between", "broadcast"]
        assert events[0].ranks == ((0, 1) if rank < 2 else (2, 3))
        assert pair == (2 * 4 * 4 if rank < 2 else 0)
        assert everybody == 8 * 4
