"""The model of CUDA's caching allocator."""

import itertools
import random

from helpers import MiB
from helpers.planner.allocator import CachingAllocator, OutOfMemory

import pytest


def test_requests_are_rounded_to_512_bytes():
    allocator = CachingAllocator()
    allocator.allocate(1)
    assert allocator.allocated == 512
    allocator.allocate(513)
    assert allocator.allocated == 512 + 1024
    assert allocator.reserved == 2 * MiB  # both in one small segment


@pytest.mark.parametrize(
    ("request_mib", "reserved_mib"),
    [(0.5, 2), (1, 2), (1.5, 20), (9, 20), (10, 10), (11, 12), (100.5, 102)],
)
def test_segments_have_cudas_sizes(request_mib, reserved_mib):
    allocator = CachingAllocator()
    allocator.allocate(int(request_mib * MiB))
    assert allocator.reserved == reserved_mib * MiB


def test_a_rest_of_up_to_one_mib_stays_with_a_large_block():
    allocator = CachingAllocator()
    allocator.allocate(11 * MiB + MiB // 2)  # a segment of 12 MiB: half a MiB is left, too little to split off
    assert allocator.allocated == 12 * MiB


def test_the_best_fit_is_taken():
    allocator = CachingAllocator()
    blocks = {size: allocator.allocate(size * MiB) for size in (40, 30, 50)}
    for block in blocks.values():
        allocator.release(block)
    assert allocator.allocate(29 * MiB).segment == blocks[30].segment
    assert allocator.reserved == 120 * MiB


def test_freed_neighbours_merge_and_are_used_again():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MiB) for _ in range(4)]  # one segment of 20 MiB
    for block in (blocks[0], blocks[2], blocks[1], blocks[3]):
        allocator.release(block)
    allocator.allocate(19 * MiB)
    assert allocator.reserved == 20 * MiB + 20 * MiB - 20 * MiB


def test_holes_are_fragmentation():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MiB) for _ in range(8)]
    for block in blocks[::2]:
        allocator.release(block)
    allocator.allocate(9 * MiB)  # 20 MiB are free, in holes of 5
    assert (allocator.allocated, allocator.reserved) == (29 * MiB, 60 * MiB)


def test_expandable_segments_grow_at_the_end():
    def play(expandable):
        allocator = CachingAllocator(expandable=expandable)
        for size in (30, 60, 90, 120):  # each step needs more than the last left behind
            allocator.release(allocator.allocate(size * MiB))
        return allocator.reserved

    assert play(expandable=False) == 300 * MiB
    assert play(expandable=True) == 120 * MiB


def test_a_hole_fits_better_than_the_end_of_an_expandable_segment():
    """`CUDACachingAllocator.cpp`, `get_free_block`: a block at the end counts with all that it can grow by."""
    allocator = CachingAllocator(expandable=True)
    hole, _ = allocator.allocate(12 * MiB), allocator.allocate(23 * MiB)
    allocator.release(hole)
    assert allocator.reserved == 40 * MiB  # 5 MiB are free at the end
    assert allocator.allocate(4 * MiB).address == hole.address


def test_the_cache_is_handed_back_before_giving_up():
    allocator = CachingAllocator(capacity=100 * MiB)
    allocator.release(allocator.allocate(60 * MiB))
    kept = allocator.allocate(80 * MiB)
    assert (allocator.reserved, allocator.retries) == (80 * MiB, 1)
    with pytest.raises(OutOfMemory, match="wanted"):
        allocator.allocate(30 * MiB)
    allocator.release(kept)
    allocator.empty_cache()
    assert allocator.reserved == 0


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_books_balance_whatever_happens(expandable, seed):
    rng = random.Random(seed)
    allocator = CachingAllocator(expandable=expandable)
    held = []
    for _ in range(3000):
        if held and rng.random() < 0.48:
            allocator.release(held.pop(rng.randrange(len(held))))
        elif rng.random() < 0.005:
            allocator.empty_cache()
        else:
            held.append(allocator.allocate(int(2 ** rng.uniform(5, 26))))
        assert allocator.allocated == sum(block.size for block in held)
        assert allocator.allocated <= allocator.reserved <= allocator.peak_reserved
    spans = sorted((block.address, block.address + block.size) for block in held)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))  # nobody overlaps
    free = sum(size for pool in allocator._free.values() for size, _, _ in pool)
    assert allocator.allocated + free == allocator.reserved
    for block in held:
        allocator.release(block)
    allocator.empty_cache()
    assert allocator.allocated == allocator.reserved == 0
