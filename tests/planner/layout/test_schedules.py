"""Schedules: PyTorch's own orders, no deadlock, and the bubbles of the textbook."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from helpers.pipelines.play import Pass, Stuck, play
from helpers.planner.config import RecipeError
from helpers.planner.layout.schedule import orders

import pytest
from torch.distributed.pipelining import schedules

from tests.planner.layout.small import DENSE, layout

LETTERS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
PASSES = {"zero-bubble": "FIW"}
SECONDS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}  # all halves equal, as the zero-bubble paper assumes


def piped(schedule, stages, count, pieces=1):
    arch = DENSE if stages * pieces <= DENSE.layers else type(DENSE)(**vars(DENSE) | {"layers": stages * pieces})
    kind = {"schedule": schedule, "virtual_stages": pieces, "reshard_after_forward": False}
    return layout(arch, pipeline=stages, micro_batches=count, **kind)


def played(case):
    stages = case.pipeline * case.virtual_stages
    share = 1 / case.virtual_stages  # of a rank's blocks in one piece
    return play(orders(case), lambda action: SECONDS[action.kind] * share, lambda stage: 0.0, stages)


def bubble(case):
    """The idle seconds of the busiest rank, as a share of its work."""
    spans = played(case)
    end = max(rank[-1].end for rank in spans)
    busy = max(sum(span.end - span.begin for span in rank) for rank in spans)
    return end / busy - 1


def of_pytorch(name, case, calculate: Callable[[Any, int], Any]):
    schedule = object.__new__(getattr(schedules, name))  # its order needs these numbers, and no stages
    schedule.pp_group_size, schedule.n_local_stages = case.pipeline, case.virtual_stages
    schedule._n_microbatches = case.micro_batches
    schedule._num_stages = case.pipeline * case.virtual_stages
    schedule.number_of_rounds = max(1, case.micro_batches // case.pipeline)
    schedule.microbatches_per_round = case.micro_batches // schedule.number_of_rounds
    return [
        [
            Pass(LETTERS[op.computation_type.name], op.stage_index, op.microbatch_index)
            for op in calculate(schedule, rank)
            if op is not None and op.computation_type.name in LETTERS
        ]
        for rank in range(case.pipeline)
    ]


@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 5), (4, 4), (4, 9), (8, 8), (3, 7)])
@pytest.mark.parametrize(("schedule", "name"), [("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B")])
def test_one_stage_a_rank_is_ordered_as_pytorch_orders_it(schedule, name, stages, count):
    if not hasattr(getattr(schedules, name), "_get_pipeline_order"):
        pytest.skip("this version of PyTorch keeps the order to itself")
    case = piped(schedule, stages, count)
    expected = of_pytorch(name, case, lambda s, rank: s._get_pipeline_order()[rank])
    if [a.micro_batch for a in expected[-1] if a.kind == "F"] == list(range(1, count + 1)):
        # A slip in PyTorch 2.13: the last rank of 1F1B, which runs none ahead, counts its forward passes from one.
        expected[-1] = [a._replace(micro_batch=a.micro_batch - (a.kind == "F")) for a in expected[-1]]
    assert orders(case) == expected


@pytest.mark.parametrize(("stages", "pieces", "count"), [(2, 2, 2), (2, 2, 6), (4, 2, 8), (4, 3, 4), (8, 2, 16)])
def test_interleaved_stages_are_ordered_as_pytorch_orders_them(stages, pieces, count):
    case = piped("interleaved", stages, count, pieces)
    expected = of_pytorch("ScheduleInterleaved1F1B", case, lambda s, rank: s._calculate_single_rank_operations(rank))
    assert orders(case) == expected


@pytest.mark.parametrize(("stages", "pieces", "count"), [(2, 1, 4), (4, 1, 8), (4, 2, 8), (2, 2, 4)])
def test_zero_bubble_is_ordered_as_pytorch_orders_it(stages, pieces, count):
    case = piped("zero-bubble", stages, count, pieces)
    name = "ScheduleInterleavedZeroBubble"
    expected = of_pytorch(name, case, lambda s, rank: s._calculate_single_rank_operations(rank))
    # Of the first stage PyTorch's engine skips the inputs' half, and does all of the pass in the weights' half.
    expected[0] = [a for a in expected[0] if a.stage or a.kind != "I"]
    expected[0] = [a if a.stage or a.kind == "F" else a._replace(kind="B") for a in expected[0]]
    assert orders(case) == expected


def every_case():
    for stages in (1, 2, 3, 4, 8):
        for count in (1, 2, 3, 4, 5, 8, 16, 24):
            for schedule in ("gpipe", "1f1b"):
                yield schedule, stages, count, 1
            for pieces in (1, 2, 4) if stages > 1 else ():
                for schedule in ("interleaved", "zero-bubble"):
                    yield schedule, stages, count, pieces


def test_no_schedule_deadlocks_or_forgets_a_pass():
    played_ones = Counter()
    for schedule, stages, count, pieces in every_case():
        try:
            case = piped(schedule, stages, count, pieces)
            actions = orders(case)
        except RecipeError:
            continue  # refused: it takes other numbers of micro-batches
        played_ones[schedule] += 1
        play(actions, lambda action: 1.0, lambda stage: 0.1, stages * pieces)  # raises on a deadlock
        passes = PASSES.get(schedule, "FB") if stages > 1 else "FB"
        for rank, order in enumerate(actions):
            own = {stage: passes if stage else "FB" for stage in range(rank, stages * pieces, stages)}
            assert sorted(order) == sorted(Pass(p, s, m) for s in own for p in own[s] for m in range(count))
            for stage in own:  # stages accumulate gradients in the order of the micro-batches
                for kind in own[stage]:
                    numbers = [a.micro_batch for a in order if (a.kind, a.stage) == (kind, stage)]
                    assert numbers == sorted(numbers)
    assert min(played_ones.values()) >= 20


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 8), (8, 8), (8, 32)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_is_that_of_the_textbook(schedule, stages, count):
    assert bubble(piped(schedule, stages, count)) == pytest.approx((stages - 1) / count)


@pytest.mark.parametrize(("stages", "pieces", "count"), [(2, 2, 4), (4, 2, 8), (4, 4, 16), (8, 2, 16)])
def test_pieces_divide_the_bubble(stages, pieces, count):
    case = piped("interleaved", stages, count, pieces)
    assert bubble(case) == pytest.approx((stages - 1) / (pieces * count))


@pytest.mark.parametrize(("stages", "pieces", "count"), [(2, 1, 8), (4, 1, 8), (4, 2, 16), (8, 1, 32)])
def test_zero_bubble_has_the_smallest(stages, pieces, count):
    others = [piped("1f1b", stages, count)]
    others += [piped("interleaved", stages, count, pieces)] if pieces > 1 else []
    assert bubble(piped("zero-bubble", stages, count, pieces)) < min(map(bubble, others))


def test_1f1b_holds_no_more_micro_batches_than_there_are_stages():
    for rank, order in enumerate(orders(piped("1f1b", 4, 12))):
        held = most = 0
        for action in order:
            held += 1 if action.kind == "F" else -1
            most = max(most, held)
        assert most == 4 - rank
    assert math.isclose(bubble(piped("gpipe", 4, 12)), bubble(piped("1f1b", 4, 12)))


def test_ranks_that_wait_for_each_other_are_found():
    backward_first = [[Pass("F", 0, 0), Pass("B", 0, 0)], [Pass("B", 1, 0), Pass("F", 1, 0)]]
    with pytest.raises(Stuck, match="rank 0 is at B0 of stage 0 and waits for I0 of stage 1"):
        play(backward_first, lambda action: 1.0, lambda stage: 0.0, 2)


def test_without_a_pipeline_no_backward_pass_is_split():
    alone = layout(DENSE, shard=2, schedule="zero-bubble")  # and so freed weights are no matter
    assert not alone.splits_backward
    assert piped("zero-bubble", 2, 4).splits_backward
