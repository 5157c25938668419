"""Ranks tell each other by files how far they are: no message of theirs goes where an answer's go."""

import time
from pathlib import Path

import torch.distributed as dist

PATIENCE = 12.0  # seconds in which a rank that does not wait gets anywhere, on a very busy machine
MEET = 60.0  # seconds in which all ranks that do not hang get anywhere


class Signals:
    """Signals between the ranks of a run, through a folder that they share."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._others = folder, set(range(dist.get_world_size())) - {dist.get_rank()}

    def give(self, name: str) -> None:
        """Say that this rank has got to `name`."""
        (self._folder / f"{name} {dist.get_rank()}").touch()

    def given(self, name: str) -> bool:
        """Return whether any rank has got to `name`."""
        return any(self._folder.glob(f"{name} *"))

    def missing(self, name: str, patience: float = PATIENCE) -> list[int]:
        """Wait until all other ranks have got to `name`; return those that have not after `patience` seconds."""
        deadline = time.monotonic() + patience
        while missing := [r for r in self._others if not (self._folder / f"{name} {r}").exists()]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return sorted(missing)
