"""One start of ranks for several stages. A stage that fails costs the others nothing: they run again without it."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...ranks.failure import RankError
from ..base import Evidence
from ..checking import evidence_of
from .on_ranks import LIMIT, on_ranks

Stages = Mapping[str, Callable[..., Any]]
Begin = Callable[[Path], Any]


def stages_on_ranks(
    stages: Stages, world_size: int, *args: Any, begin: Begin = Path, timeout: float = LIMIT
) -> dict[str, Evidence]:
    """Run `stages` one after the other on ranks that are started once.

    Args:
        stages: by name, the work of a rank: called with what `begin` returned, and with `args`.
        begin: called on each rank before the first stage, with an empty folder that all ranks share.
        timeout: seconds for all stages of a start, as in `run_ranks`. After one that hangs the others are tried once
            more; behind the second one that hangs, no stage is run.

    Returns:
        an entry for each stage: {"seen": what each rank returned}, or what evidence keeps of an error.

    Raises:
        NotImplementedError: no stage has been attempted: the first one stopped there.
    """
    found: dict[str, Evidence] = {}
    while left := {name: work for name, work in stages.items() if name not in found}:
        names = list(left)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                ranks = on_ranks(_all_of, world_size, left, begin, folder, args, timeout=timeout)
            except (RankError, NotImplementedError) as error:
                failed = names.index(_reached(Path(folder), names))
                unattempted = isinstance(error, NotImplementedError)
                if unattempted and names[failed] == next(iter(stages)):
                    raise
                late = [name for name, entry in found.items() if entry.get("overdue")]
                found[names[failed]] = entry = evidence_of(error)
                if unattempted:
                    found |= dict.fromkeys(names[failed + 1 :], entry)
                elif late and entry.get("overdue"):
                    stopped = {"stopped": f"the ranks of {late[0]} did not come back. Fix that first."}
                    found |= dict.fromkeys(names[failed + 1 :], stopped)
            else:
                found |= {name: {"seen": [seen[name] for seen in ranks]} for name in names}
    return {name: found[name] for name in stages}


def _all_of(stages: Stages, begin: Begin, folder: str, args: tuple[Any, ...]) -> Evidence:
    """One rank: all stages. No rank begins the next one before all have ended the one before."""
    shared = Path(folder) / "shared"
    shared.mkdir(exist_ok=True)
    common, together = begin(shared), dist.new_group()  # a group that no answer knows
    seen = {}
    for number, (name, work) in enumerate(stages.items()):
        Path(folder, str(dist.get_rank())).write_text(str(number))
        seen[name] = work(common, *args)
        dist.barrier(together)
    return seen


def _reached(folder: Path, names: list[str]) -> str:
    """Return the stage at which the ranks were when they failed."""
    notes = [note for note in folder.iterdir() if note.is_file()]
    return names[max((int(note.read_text() or 0) for note in notes), default=0)]
