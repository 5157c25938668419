"""A diary tells the dimensions of a mesh apart, and counts what is in flight."""

from helpers import run_ranks
from helpers.exercises.sharding.diary import Diary, Event
from helpers.exercises.sharding.drawings import in_flight

import torch
import torch.distributed as dist


def two_groups():
    rank = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    with Diary() as diary:
        dist.all_reduce(torch.ones(4), group=pairs[rank // 2])
        diary.note("between")
        dist.broadcast(torch.ones(8), 0)
    return diary.events, diary.volume_among([0, 1]), diary.volume_among([0, 1, 2, 3])


def test_bytes_are_told_apart_by_the_ranks_that_took_part():
    ranks = run_ranks(two_groups, 4, device="cpu", measure=False).results
    for rank, (events, pair, everybody) in enumerate(ranks):
        assert [event.name for event in events] == ["all_reduce", "between", "broadcast"]
        assert events[0].ranks == ((0, 1) if rank < 2 else (2, 3))
        assert pair == (2 * 4 * 4 if rank < 2 else 0)
        assert everybody == 8 * 4


def test_in_flight_is_what_was_asked_for_and_has_not_run():
    gather, blocks = Event("all_gather", 8, (0, 1)), [Event(f"block {i}") for i in range(3)]
    plain = [gather, blocks[0], gather, blocks[1], gather, blocks[2]]
    ahead = [gather, gather, blocks[0], gather, blocks[1], blocks[2]]
    assert [in_flight(plain, f"block {i}") for i in range(3)] == [1, 1, 1]
    assert [in_flight(ahead, f"block {i}") for i in range(3)] == [2, 2, 1]
