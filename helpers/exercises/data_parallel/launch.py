"""Start a script as on a server: with `torchrun`."""

import os
import sys
import tempfile
from pathlib import Path

from ...core.limited_process import run_limited

QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "RES_OPTIONS": "timeout:1 attempts:1"}
LIMIT = 60.0  # seconds of one attempt


def torchrun(script: str, ranks: int, attempts: int = 3) -> str:
    """Run the text of a program with `torchrun --standalone --nproc-per-node=RANKS`; return what it prints.

    Over gloo a rank sometimes aborts or hangs as it exits, after its work (PyTorch 2.13). Then the program is started
    again.
    """
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "train.py"), Path(folder, "log.txt")
        path.write_text(script, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            str(path),
        ]
        for _ in range(attempts):
            with log.open("w", encoding="utf-8") as output:
                code = run_limited(command, os.environ | QUIET, LIMIT, output)
            said = log.read_text(encoding="utf-8", errors="replace")
            if code == 0:
                break
    return said if code == 0 else said[-2000:]
