"""Name the case at which ranks failed: a report of ranks says who raised or waits, and where, but not with what."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist

from ...ranks.failure import RankError


@contextlib.contextmanager
def case_named(world_size: int) -> Iterator[str]:
    """Give a folder in which ranks note what they are at (`note_case`).

    Raises:
        RankError: that which came from the ranks, with a line before it: the case of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield folder
        except RankError as error:
            raise RankError(f"{_cases(Path(folder), world_size)}\n{error}", error.raised, error.overdue) from None


def note_case(folder: str, case: str) -> None:
    """Note on a rank which case comes next; a hang or a crash leaves the note behind."""
    Path(folder, str(dist.get_rank())).write_text(case)


def _cases(folder: Path, world_size: int) -> str:
    notes = {rank: folder / str(rank) for rank in range(world_size)}
    cases = {rank: note.read_text() if note.exists() else "the start" for rank, note in notes.items()}
    if len(set(cases.values())) == 1:
        return f"with {world_size} rank{'s' * (world_size > 1)}, {cases[0]}:"
    return f"with {world_size} ranks, " + ", ".join(f"rank {rank} at {case}" for rank, case in cases.items()) + ":"
