"""A job under `torchrun`, with restarts: a function of a notebook cell becomes the program of each rank."""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from ...core.files import ROOT
from ...core.limited_process import run_limited
from ...core.sign_of_life import sign_of_life
from ...ranks.run import LOOPBACK

PROGRAM = """
import sys, cloudpickle
from pathlib import Path
work, arguments = cloudpickle.loads(Path(sys.argv[1]).read_bytes())
work(*arguments)
"""
QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "RES_OPTIONS": "timeout:1 attempts:1"}
# By default the ranks of a new attempt meet in the store of the last one and read addresses of processes that are dead.
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_LOUD = re.compile(r"^(\[rank\d+\]:|\[[EW]\d|[EW]\d{4} |\[.*gloo|Traceback|  )")


@dataclass(frozen=True)
class TorchrunJob:
    """What became of a job.

    Attributes:
        code: of `torchrun`; 0 if the job was finished in the end; None if it was ended after its limit.
        printed: what the ranks printed.
        failures: for each attempt that failed, (exit code, rank) of the first rank that `torchrun` saw fail.
        everything: what ranks and `torchrun` said, as it was.
    """

    code: int | None
    printed: str
    failures: list[tuple[int, int]]
    everything: str

    def exit_codes(self, attempt: int, ranks: int) -> dict[int, int]:
        """Return the exit code of each rank: the first to fail has its own, and the others were told to stop (-15)."""
        if attempt >= len(self.failures):
            return dict.fromkeys(range(ranks), 0)
        code, first = self.failures[attempt]
        return dict.fromkeys(range(ranks), -15) | {first: code}


def torchrun_job(
    work: Callable[..., None], ranks: int, *arguments: Any, restarts: int = 0, limit: float = 180.0
) -> TorchrunJob:
    """Run `work(*arguments)` on each rank: `torchrun --standalone --nproc-per-node=RANKS --max-restarts=RESTARTS`.

    Args:
        work: the whole program of a rank; it opens the process group. It may be defined in a cell.
        ranks: how many.
        arguments: for every rank.
        restarts: how often all ranks are started again after one has failed.
        limit: seconds; then everything is ended.
    """
    with tempfile.TemporaryDirectory(prefix="torchrun-", ignore_cleanup_errors=True) as folder:
        program, payload, log = Path(folder, "train.py"), Path(folder, "work.pickle"), Path(folder, "log.txt")
        program.write_text(PROGRAM, encoding="utf-8")
        payload.write_bytes(cloudpickle.dumps((work, arguments)))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", str(program), str(payload)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | QUIET | NEW_STORE | {"PYTHONPATH": path}
        if sys.platform in LOOPBACK:
            environment["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
        with log.open("w", encoding="utf-8") as output, sign_of_life("torchrun"):
            code = run_limited(command, environment, limit, output)
        said = log.read_text(encoding="utf-8", errors="replace")
    failures = [(int(exit_code), int(rank)) for exit_code, rank in _FAILED.findall(said)]
    printed = "\n".join(line for line in said.splitlines() if line and not _LOUD.match(line))
    return TorchrunJob(code, printed.partition("\nRoot Cause")[0], failures, said)
