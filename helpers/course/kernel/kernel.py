"""The kernel that nbval talks to when it grades. It runs no learner's code.

A cell that collects evidence is run by a process of its own, which first runs the cells before it; all other cells are
only stored. So an answer that dies or breaks something costs no other part, and no answer runs where nbval's messages
are made.

The processes are forked from one that has imported everything: see warm_server.py. This file runs as a script and
imports little.
"""

import contextlib
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from multiprocessing import connection, forkserver
from typing import Any

from helpers.core.fresh_process import CONTEXT, start_process
from helpers.course.kernel.mime import MIME
from helpers.course.kernel.part_process import part_process
from helpers.course.kernel.processes import die_with_parent, limit

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

COLLECT = re.compile(r'collect\("([\w.]+)", [\w, ]+, seed=(\d+)\)')
CELL = re.compile(r"# cell: (\w+)\n")
LONGEST = 4_000_000  # bytes of a report


class GradingKernel(Kernel):
    """Stores cells; runs the checks of a part when asked to collect their evidence."""

    implementation, implementation_version = "training-at-scale", "1"
    banner = "grading"
    language_info = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}  # noqa: RUF012

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cells: list[tuple[str, str]] = []
        self._doorkeeper = _knock(os.environ.get("GRADING_DOOR", ""))

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
        reply, theirs = CONTEXT.Pipe(duplex=False)
        token = secrets.token_hex(16).encode()
        try:
            if self._doorkeeper:
                _use_warm_server(self._doorkeeper)
            args = (theirs, token, self.cells, part, seed)
            process = start_process(part_process, args, ["helpers.course.kernel.run_part"], "part")
        except OSError as error:  # an earlier answer took away what starting takes
            self._show({"died": f"the process for this part could not be started ({error.strerror})"})
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


def _knock(door: str) -> socket.socket | None:
    """Connect to the doorkeeper of this submission; None where there is none, or it cannot come in here."""
    if not door:
        return None
    doorkeeper = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        doorkeeper.connect(door)
        if doorkeeper.recv(1):
            return doorkeeper
    return None  # then multiprocessing starts a fork server here, and that one imports


def _use_warm_server(doorkeeper: socket.socket) -> None:
    """Have multiprocessing use a fork server that the doorkeeper forks for it, where it would start one itself."""
    address = connection.arbitrary_address("AF_UNIX")
    alive, ours = os.pipe()  # the server goes on until the last process that holds our end has ended
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        socket.send_fds(doorkeeper, [b"f"], [listener.fileno(), alive])
    os.close(alive)
    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:  # that of the part before
        os.close(server._forkserver_alive_fd)
    server._forkserver_address, server._forkserver_alive_fd = address, ours
    server.ensure_running = lambda: None


if __name__ == "__main__":
    die_with_parent()
    limit(int(os.environ.get("GRADING_MEMORY", "0")))
    IPKernelApp.launch_instance(kernel_class=GradingKernel, argv=sys.argv[1:])
