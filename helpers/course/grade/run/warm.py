"""The warm servers of this grader, one an exercise: see kernel/warm_server.py."""

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ....core.descendants import end_process
from .probes_only import probes_only
from .sandbox import MEMORY, Sandbox, find_bubblewrap

# Up to here a fork server is told everything on its command line; later ones expect a key as well.
_WORKS = sys.platform == "linux" and sys.version_info < (3, 14)


class WarmServers:
    """Starts a server when its exercise first needs one. Use it with `with`: the block ends them all.

    Attributes:
        bubblewrap: see `Sandbox`.
    """

    def __init__(self) -> None:
        self.bubblewrap = find_bubblewrap()
        self._copy = tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True)
        self._servers: dict[str, subprocess.Popen] = {}
        self._lock = threading.Lock()

    @property
    def sandbox(self) -> Sandbox:
        """Where submissions run, with a copy of the course that is made when it is first needed."""
        with self._lock:
            return self._sandbox

    @cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox(probes_only(Path(self._copy.name).resolve()), self.bubblewrap, MEMORY)

    @contextlib.contextmanager
    def doorkeeper(self, exercise: str, seed: int, door: Path) -> Iterator[int | None]:
        """Have a doorkeeper wait at the socket `door`; yield its process id, or None where it cannot be had.

        What probes make of `seed`, whoever answers, is made before.
        After the block it has ended, with all that it has forked.
        """
        doorkeeper = self._ask(exercise, seed, door) if _WORKS else None
        try:
            yield doorkeeper
        finally:
            if doorkeeper is not None:
                end_process(doorkeeper)

    def _ask(self, exercise: str, seed: int, door: Path) -> int | None:
        with self._lock:
            server = self._servers.get(exercise)
            if server is None or server.poll() is not None:
                server = self._servers[exercise] = self._start(exercise)
            try:
                server.stdin.write(f"{seed} {door}\n")
                server.stdin.flush()
                return int(server.stdout.readline())
            except (OSError, ValueError):  # it has ended; without it a submission runs, only later
                return None

    def _start(self, exercise: str) -> subprocess.Popen:
        course = self._sandbox.course
        command = [sys.executable, "-s", "-m", "helpers.course.kernel.warm_server"]
        command += ["--walls"] * bool(self.bubblewrap)
        environment = {**self._sandbox.environment(exercise), "HOME": str(course)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, **pipes, text=True, cwd=course, env=environment)

    def __enter__(self) -> "WarmServers":
        return self

    def __exit__(self, *of_the_block: object) -> None:
        for server in self._servers.values():
            server.communicate()  # closes its input, at which it ends
        self._copy.cleanup()
