"""The order in which a pipeline's ranks work on micro-batches.

Each schedule is a list of passes for a rank: of which kind, through which of its stages, of which micro-batch.
PyTorch computes the zero-bubble schedule. The others take a few lines each, and tests compare them with PyTorch's.
"""

from functools import lru_cache

from ...pipelines.play import BACKWARD, FOR_INPUT, FOR_WEIGHTS, FORWARD, Pass
from ..config import RecipeError
from .layout import Layout


def orders(layout: Layout) -> list[list[Pass]]:
    """Return the actions of each pipeline rank, in order.

    Raises:
        RecipeError: the schedule cannot deal with so many micro-batches.
    """
    return [
        order_of(
            layout.schedule,
            rank,
            layout.pipeline,
            layout.virtual_stages,
            layout.micro_batches,
            layout.micro_batch_group,
        )
        for rank in range(layout.pipeline)
    ]


@lru_cache(maxsize=64)  # layouts that a search plans one after the other differ in other things
def order_of(schedule: str, rank: int, ranks: int, pieces: int, count: int, group: int = 0) -> list[Pass]:
    """Return the actions of one rank of `ranks`, with `pieces` stages each, for `count` micro-batches.

    `group` is that of `interleaved`, in groups of `ranks` if 0.

    Raises:
        RecipeError: the schedule cannot deal with so many micro-batches.
    """
    if schedule == "gpipe":
        return gpipe(rank, count)
    if schedule == "1f1b" or ranks == 1:
        return one_forward_one_backward(rank, ranks, count)
    if schedule == "interleaved":
        return interleaved(rank, ranks, pieces, count, group)
    return zero_bubble(rank, ranks, pieces, count)


def gpipe(rank: int, count: int) -> list[Pass]:
    """Return all forward passes, then all backward passes (Huang et al. 2019)."""
    return [Pass(kind, rank, m) for kind in (FORWARD, BACKWARD) for m in range(count)]


def one_forward_one_backward(rank: int, stages: int, count: int) -> list[Pass]:
    """Return as many forward passes as stages follow, then a backward pass after each (Narayanan et al. 2019)."""
    ahead = min(count, stages - 1 - rank)
    actions = [Pass(FORWARD, rank, m) for m in range(ahead)]
    for m in range(count):
        if m + ahead < count:
            actions.append(Pass(FORWARD, rank, m + ahead))
        actions.append(Pass(BACKWARD, rank, m))
    return actions


def interleaved(rank: int, ranks: int, pieces: int, count: int, group: int = 0) -> list[Pass]:
    """Return 1F1B over `pieces` stages a rank (Narayanan et al. 2021).

    A stage takes `group` micro-batches, or as many as there are ranks, before the next one's turn.
    """
    group = group or ranks
    turns = [  # (piece, micro-batch)
        (piece, m)
        for start in range(0, count, group)
        for piece in range(pieces)
        for m in range(start, min(start + group, count))
    ]

    def action(kind: str, at: int) -> Pass:
        piece, micro_batch = turns[at]
        piece = piece if kind == FORWARD else pieces - 1 - piece
        return Pass(kind, piece * ranks + rank, micro_batch)

    total = pieces * count
    ahead = min(total, (pieces - 1) * group + 2 * (ranks - 1 - rank))
    actions = [action(FORWARD, at) for at in range(ahead)]
    for at in range(total):
        if at + ahead < total:
            actions.append(action(FORWARD, at + ahead))
        actions.append(action(BACKWARD, at))
    return actions


def zero_bubble(rank: int, ranks: int, pieces: int, count: int) -> list[Pass]:
    """Return 1F1B with backward passes split in two, by PyTorch's `ScheduleInterleavedZeroBubble` (Qi et al. 2023).

    The first stage, whose input needs no gradient, does all of its backward pass where the weights' half has its place.

    Raises:
        RecipeError: it refuses so many micro-batches.
    """
    from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

    rounds = max(1, count // ranks)
    if count % rounds:
        raise RecipeError(f"The zero-bubble schedule takes micro-batches in {rounds} equal rounds; {count} are not.")
    schedule = object.__new__(ScheduleInterleavedZeroBubble)  # its order needs these numbers, and no stages
    schedule.pp_group_size, schedule.n_local_stages, schedule._n_microbatches = ranks, pieces, count
    schedule.number_of_rounds, schedule.microbatches_per_round = rounds, count // rounds
    schedule._num_stages = ranks * pieces
    letters = {
        "FORWARD": FORWARD,
        "FULL_BACKWARD": BACKWARD,
        "BACKWARD_INPUT": FOR_INPUT,
        "BACKWARD_WEIGHT": FOR_WEIGHTS,
    }
    operations = [op for op in schedule._calculate_single_rank_operations(rank) if op is not None]
    actions = [
        Pass(letters[op.computation_type.name], op.stage_index, op.microbatch_index)
        for op in operations
        if op.computation_type.name in letters
    ]
    whole = {FOR_WEIGHTS: BACKWARD}
    return [
        action._replace(kind=whole.get(action.kind, action.kind)) if action.stage == 0 else action
        for action in actions
        if action.stage or action.kind != FOR_INPUT
    ]
