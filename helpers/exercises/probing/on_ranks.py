"""Probe an answer on several ranks."""

from collections.abc import Callable
from typing import Any

from ...ranks.failure import RankError
from ...ranks.run import run_ranks

LIMIT = 45.0  # seconds for what takes two on a busy machine: ranks that take longer wait for each other


def on_ranks(
    work: Callable[..., Any], world_size: int, *args: Any, process_group: bool = True, timeout: float = LIMIT
) -> list[Any]:
    """Return what `work(*args)` returns on each rank. Nothing is shown of what ranks print.

    The ranks use the CPU and gloo on every machine, so that no verdict depends on it: over gloo a missed collective is
    found where it was missed.

    Raises:
        NotImplementedError: if that is what stopped a rank: the answer has not been attempted.
        RankError: a rank failed or did not come back.
    """
    try:
        return run_ranks(
            work,
            world_size,
            *args,
            device="cpu",
            timeout=timeout,
            measure=False,
            process_group=process_group,
            show=False,
        ).results
    except RankError as error:
        stub = NotImplementedError.__name__
        if error.raised == stub and f"raised {stub}: " not in str(error):  # with a message it is PyTorch's
            raise NotImplementedError from None
        raise
