"""The list of actions of one of PyTorch's own schedules, in the words of this course."""

from typing import Any

from .action import KINDS, Action
from .placement import Placement


def torch_order(schedule: Any, placement: Placement) -> list[list[Action]]:
    """Return the lists of all ranks of a schedule of `torch.distributed.pipelining` with several stages a rank.

    PyTorch's actions name the stage, ours the chunk. Its lists have gaps for the time in which a rank waits, and
    entries for messages; both are left out. An entry of two actions that overlap becomes these two, in their order.
    """
    lists = []
    for rank, stages in enumerate(placement):
        found = [entry for entry in schedule.pipeline_order[rank] if entry is not None]
        entries = [part for entry in found for part in getattr(entry, "sub_actions", None) or (entry,)]
        steps = [(str(e.computation_type.value), e.microbatch_index, stages.index(e.stage_index)) for e in entries]
        lists.append([Action(*step) for step in steps if step[0] in tuple(KINDS)])
    return lists
