"""A pytest plugin that has nbval run submissions in the sandbox, and writes down what each cell did.

nbval runs the cells and compares their outputs; grading needs the outputs themselves. Each cell gives one line of JSON:
its id, its error if it had one, whether it timed out, and the reports it displayed.

nbval notices a dead kernel only when the cell's time is up. A thread watches the kernel's processes and ends the run
at once when they are gone, or when they have become too many or too big.
"""

import contextlib
import json
import os
import threading
from collections.abc import Generator
from queue import Empty
from typing import Any

import nbval.kernel
import psutil
import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

from ....core.descendants import end_descendants
from ...kernel.mime import MIME
from .job import Job

MOST_PROCESSES = 100  # of one submission; the two-rank exercise takes ten
EVERY = 0.2  # seconds between two looks


class GradingPlugin:
    """Runs one submission.

    Args:
        doorkeeper: the process that forks what runs the answers; None where the kernel does that itself.
    """

    def __init__(self, job: Job, doorkeeper: int | None) -> None:
        self._job = job
        self._families = [psutil.Process(), *([psutil.Process(doorkeeper)] if doorkeeper is not None else [])]
        self._cell: pytest.Item | None = None
        self._kernel: psutil.Process | None = None
        self._over = threading.Event()

    def pytest_configure(self) -> None:
        """Give nbval the kernel of the sandbox instead of the notebook's."""
        nbval.kernel.KernelManager = self._manager

    def _manager(self, **kwargs: Any) -> KernelManager:
        plugin, sandbox, folder = self, self._job.sandbox, self._job.kernel

        class SandboxedKernelManager(KernelManager):
            kernel_spec = KernelSpec(
                argv=sandbox.kernel(folder), display_name="grading", language="python", interrupt_mode="message"
            )

            def start_kernel(self, **options: Any) -> None:
                environment = sandbox.environment(plugin._job.exercise)
                if len(plugin._families) == 2:
                    environment["GRADING_DOOR"] = str(plugin._job.door)
                super().start_kernel(**options, env=environment)
                plugin._kernel = psutil.Process(self.provisioner.pid)
                threading.Thread(target=plugin._watch, daemon=True).start()

        manager = SandboxedKernelManager(**kwargs, connection_file=str(folder / "kernel.json"))
        if os.name == "posix":  # sockets in the folder: the sandbox has no network
            manager.transport, manager.ip = "ipc", str(folder / "kernel")
        return manager

    def _watch(self) -> None:
        problem = None
        while problem is None:
            if self._over.wait(EVERY):
                return
            problem = self._problem()
        self._kill()
        if self._cell is not None:
            self._write(self._cell, {"error": problem, "timed_out": False, "reports": self._unread(self._cell)})
        self._leave()

    def _kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have died by itself
            self._kernel.kill()  # in a sandbox all processes end with the first

    def _leave(self) -> None:
        self._kill()
        end_descendants(psutil.Process())
        os._exit(pytest.ExitCode.INTERRUPTED)

    def _problem(self) -> str | None:
        try:
            if self._kernel.status() == psutil.STATUS_ZOMBIE:
                return "the kernel died"
            # The kernel and its own, adopted orphans, and what the doorkeeper has forked.
            family = [process for first in self._families for process in first.children(recursive=True)]
            if len(family) > MOST_PROCESSES:
                return f"more than {MOST_PROCESSES} processes were started"
            used = 0
            for process in family:
                try:
                    memory = process.memory_info()
                    used += memory.rss - getattr(memory, "shared", 0)
                except psutil.Error:
                    continue
            if used > self._job.sandbox.memory:
                return f"more than {self._job.sandbox.memory / 2**30:.3g} GiB of memory was used"
        except psutil.NoSuchProcess:
            return "the kernel died"
        return None

    def _unread(self, item: pytest.Item) -> list[str]:
        """Return the reports that a dead kernel has displayed and nbval, which waits for its reply, has not read."""
        reports = []
        while True:
            try:
                message = item.parent.kernel.get_message("iopub", timeout=1)
            except Empty:
                return reports
            data = message["content"].get("data", {})
            if MIME in data:
                reports.append(data[MIME])

    def _write(self, item: pytest.Item, record: dict[str, Any]) -> None:
        with self._job.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": item.cell.id, **record}) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Note which cell runs."""
        self._cell = item
        try:
            return (yield)
        finally:
            self._cell = None

    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """After the last cell the kernel is meant to end."""
        if nextitem is None:
            self._over.set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Generator[None, Any, Any]:
        """Append the record of a cell once it has run."""
        report = yield
        if call.when == "call":
            outputs = getattr(item, "test_outputs", None) or []
            record = {
                "error": str(call.excinfo.value)[:500] if call.excinfo is not None else None,
                "timed_out": bool(item.parent.timed_out),
                "reports": [o["data"][MIME] for o in outputs if MIME in o.get("data", {})],
            }
            self._write(item, record)
            if record["timed_out"]:  # the rest is not run
                self._leave()
        return report
