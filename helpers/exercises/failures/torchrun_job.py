"""A job under `torchrun`, with restarts: a function of a notebook cell becomes the program of each rank."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
from torch.distributed import TCPStore

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
# A launcher that has given no sign for 2 s is lost; those that are left wait 5 s for another one.
ELASTIC = "is_host=0,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=5"
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
    work: Callable[..., None], ranks: int, *arguments: Any, restarts: int = 0, limit: float = 180.0, nodes: int = 1
) -> TorchrunJob:
    """Run `work(*arguments)` on each rank: `torchrun --standalone --nproc-per-node=RANKS --max-restarts=RESTARTS`.

    Args:
        work: the whole program of a rank; it opens the process group. It may be defined in a cell.
        ranks: how many on each node.
        arguments: for every rank.
        restarts: how often all ranks are started again after one has failed.
        limit: seconds; then everything is ended.
        nodes: launchers, all on this machine. More than one: `--nnodes=1:NODES`, so the job goes on with those that are
            left, and is finished if one of them says so.
    """
    with tempfile.TemporaryDirectory(prefix="torchrun-", ignore_cleanup_errors=True) as folder:
        program, payload = Path(folder, "train.py"), Path(folder, "work.pickle")
        program.write_text(PROGRAM, encoding="utf-8")
        payload.write_bytes(cloudpickle.dumps((work, arguments)))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | QUIET | NEW_STORE | {"PYTHONPATH": path}
        if sys.platform in LOOPBACK:
            environment["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
        # Where several launchers meet is kept in this process, so that it outlives each of them.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if nodes > 1 else None
        meeting = _elastic(nodes, store.port) if store else ["--standalone"]
        command = [sys.executable, "-m", "torch.distributed.run", *meeting, f"--nproc-per-node={ranks}"]
        command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", str(program), str(payload)]
        logs = [Path(folder, f"log-{node}.txt") for node in range(nodes)]
        with sign_of_life("torchrun"), contextlib.ExitStack() as opened, ThreadPoolExecutor(nodes) as threads:
            outputs = [opened.enter_context(log.open("w", encoding="utf-8")) for log in logs]
            codes = list(threads.map(lambda output: run_limited(command, environment, limit, output), outputs))
        code = 0 if 0 in codes else codes[0]
        said = "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    failures = [(int(exit_code), int(rank)) for exit_code, rank in _FAILED.findall(said)]
    printed = "\n".join(line for line in said.splitlines() if line and not _LOUD.match(line))
    return TorchrunJob(code, printed.partition("\nRoot Cause")[0], failures, said)


def _elastic(nodes: int, port: int) -> list[str]:
    """Return the options of each of up to `nodes` launchers that meet at this port."""
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic"]
    return [f"--nnodes=1:{nodes}", *meeting, f"--rdzv-conf={ELASTIC}"]
