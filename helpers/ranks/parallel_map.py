"""Work through a list in two processes, neither of which waits for the other.

>>> parallel_map(train, seeds)  # doctest: +SKIP

Each process takes the next item as soon as it has done its last one, so put the long ones first.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from .run import run_ranks


def parallel_map(work: Callable[[Any], Any], items: Sequence[Any], timeout: float = 600.0) -> list[Any]:
    """Return [work(item) for item in items], computed in two processes.

    Args:
        work: may be defined in a cell; what it uses and what it returns is copied from process to process.
        items: any number of them.
        timeout: seconds that all may take.

    Raises:
        RankError: `work` raised, a process died, or it took too long.
    """

    def take_turns(items: Sequence[Any]) -> dict[int, Any]:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False)
        done = {}
        while (number := store.add("taken", 1) - 1) < len(items):
            done[number] = work(items[number])
        return done

    shares = run_ranks(take_turns, 2, items, timeout=timeout, measure=False, process_group=False).results
    done = {number: result for share in shares for number, result in share.items()}
    return [done[number] for number in range(len(items))]
