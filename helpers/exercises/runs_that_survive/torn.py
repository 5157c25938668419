"""A process that saves over and over into one file and is killed: how often is the file torn?"""

import random
import tempfile
import time
from pathlib import Path

import torch

from ...core.fresh_process import start_process
from ...core.sign_of_life import sign_of_life
from ...ranks.rank import PRELOAD


def torn_files(kills: int) -> int:
    """Kill a process `kills` times while it saves to a file again and again; return how often the file is torn."""
    chance, torn = random.Random(0), 0
    with tempfile.TemporaryDirectory(prefix="torn-") as name, sign_of_life("a process that is killed while it saves"):
        path = Path(name, "checkpoint.pt")
        for _ in range(kills):
            path.unlink(missing_ok=True)
            process = start_process(save_for_ever, (str(path),), [*PRELOAD, __name__], "saver")
            deadline = time.monotonic() + 20
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(chance.uniform(0.01, 0.05))
            process.kill()
            process.join()
            torn += not _loads(path)
    return torn


def save_for_ever(path: str) -> None:
    """Save the same state to `path`, over and over."""
    torch.set_num_threads(1)
    state = {f"layer {i}": torch.ones(256, 256) for i in range(16)}  # 4 MiB
    while True:
        torch.save(state, path)


def _loads(path: Path) -> bool:
    try:
        torch.load(path)
    except Exception:  # whatever torch.load says of half a file
        return False
    return True
