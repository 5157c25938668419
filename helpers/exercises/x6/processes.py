"""Answers in processes that may be killed, and in fresh ones that read what is left."""

import re
from collections.abc import Callable
from typing import Any

import cloudpickle

from ...ranks.failure import RankError
from ..probing.on_ranks import on_ranks

_KILLED = re.compile(
    r"rank \d+ died \(exit code (-9|-25|15)\)"  # SIGKILL; a file too large; Windows
    r"|rank \d+ died(.|\n)*died as well"  # another rank may fall over the one that was killed
)


def packed(*answers: Callable[..., Any]) -> bytes:
    """Return `answers` so that a process can change names of `os` before it unpacks them."""
    return cloudpickle.dumps(answers)


def unpacked(answers: bytes) -> Any:
    """Return what `packed` was given."""
    return cloudpickle.loads(answers)


def run_or_die(work: Callable[..., Any], ranks: int, *args: Any, process_group: bool = True) -> list[Any] | None:
    """Return what `work(*args)` returns on each rank; None when one of them was killed.

    Raises:
        NotImplementedError: the answer has not been attempted.
        RankError: a rank raised, or did not come back.
    """
    try:
        return on_ranks(work, ranks, *args, process_group=process_group)
    except RankError as error:
        if _KILLED.match(str(error)):
            return None
        raise
