"""The kernel that nbval talks to when it grades. It runs no learner's code.

A cell that collects evidence is run by a process of its own, which first runs the cells before it; all other cells are
only stored. So an answer that dies or breaks something costs no other part, and no answer runs where nbval's messages
are made.

The processes are forked from one that has imported everything (multiprocessing's fork server), which takes a moment.
This file runs as a script and imports little: PyTorch is for that server.
"""

import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from multiprocessing import connection, forkserver, get_context
from typing import Any

import processes  # these two lie beside this file
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from mime import MIME

COLLECT = re.compile(r'collect\("([\w.]+)", [\w, ]+, seed=(\d+)\)')
CELL = re.compile(r"# cell: (\w+)\n")
LONGEST = 4_000_000  # bytes of a report
STARTED = get_context("forkserver" if sys.platform == "linux" else "spawn")  # see helpers/core/fresh_process.py


def run_part(*args: Any) -> None:
    """In the new process: import what the server has imported, and go on there."""
    processes.die_with_parent()
    from helpers.course.kernel.run_part import run_part

    run_part(*args)


class GradingKernel(Kernel):
    """Stores cells; runs the checks of a part when asked to collect their evidence."""

    implementation, implementation_version = "training-at-scale", "1"
    banner = "grading"
    language_info = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}  # noqa: RUF012

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cells: list[tuple[str, str]] = []

    def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Store the cell, or collect evidence."""
        call = COLLECT.fullmatch(code)
        if call:
            self._collect(call[1], int(call[2]))
        elif not silent:
            name = CELL.match(code)
            self.cells.append((name[1] if name else "setup", code[name.end() :] if name else code))
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    def _collect(self, part: str, seed: int) -> None:
        reply, theirs = STARTED.Pipe(duplex=False)
        token = secrets.token_hex(16).encode()
        process = STARTED.Process(target=run_part, args=(theirs, token, self.cells, part, seed))
        try:
            process.start()
        except OSError as error:  # an earlier answer took away what starting takes
            self._show({"died": f"could not be started any more ({error.strerror})"})
            return
        theirs.close()
        complete = False
        for report in _reports(reply, process.sentinel, token):
            complete = report is None
            if report is not None:
                self._show(report)
        process.join(5)
        process.kill()
        if not complete:
            self._show({"died": f"the process that ran this part ended by itself (exit code {process.exitcode})"})

    def _show(self, report: dict[str, Any]) -> None:
        data = {MIME: json.dumps(report), "text/plain": "evidence"}
        self.send_response(self.iopub_socket, "display_data", {"data": data, "metadata": {}, "transient": {}})


def _reports(reply: Any, ended: int, token: bytes) -> Iterator[dict[str, Any] | None]:
    """Yield the reports that arrive until the process ends, and None if it says that these were all.

    A message without the token is no report.
    """
    while True:
        ready = connection.wait([reply, ended])
        try:
            if reply not in ready and not reply.poll():
                return
            message = reply.recv_bytes(LONGEST)
        except (EOFError, OSError):  # closed, or longer than any evidence
            return
        if message == token:
            yield None
            return
        if message.startswith(token):
            yield json.loads(message[len(token) :])


def limit(memory: int) -> None:
    """Set limits that all processes of this kernel inherit: memory and file sizes in bytes, no core dumps."""
    try:
        import resource
    except ImportError:  # Windows: the grader watches from outside
        return
    if memory:  # 0 on a GPU machine: CUDA reserves far more addresses than it uses
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    processes.die_with_parent()
    limit(int(os.environ.get("GRADING_MEMORY", "0")))
    if STARTED.get_start_method() == "forkserver":
        STARTED.set_forkserver_preload(["helpers.course.kernel.run_part"])
        forkserver.ensure_running()
    IPKernelApp.launch_instance(kernel_class=GradingKernel, argv=sys.argv[1:])
