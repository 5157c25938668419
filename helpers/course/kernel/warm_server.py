"""A process that has imported what the checks of one exercise need, and runs no learner's code.

    grader --- warm server (one an exercise: imports)
                  +- doorkeeper (one a submission: goes into the submission's sandbox)
                        +- fork server (one a part: gives up its rights) - the part's process, its ranks

Importing PyTorch, and noting for the guard what stands where, takes seconds; a fork takes milliseconds. So does what
probes make of a seed before they meet an answer, such as a base that is to be fine-tuned: see `prepare` of exercises.
Each submission has a doorkeeper of its own, which is outside its process namespace: an answer cannot reach it, and it
ends with the submission. Whatever an answer changes, it changes in its own copy of the memory.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from multiprocessing import forkserver

from helpers.core.device import pick_device
from helpers.course.kernel import run_part  # noqa: F401 - this is what the server is warm for
from helpers.course.kernel.processes import adopt_orphans, die_with_parent, limit
from helpers.course.kernel.walls import enter_walls_of, give_up_rights

MOST = 40  # fork servers of one submission: it needs one a part


def main(walls: bool) -> None:
    """Read seeds with paths of sockets, a line each; for each fork a doorkeeper, which answers with its process id."""
    gc.freeze()  # what is imported stays: collections in forked processes need not look at it, which would copy it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the grader; with it this input ends
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for doorkeepers
    for line in sys.stdin:
        seed, _, path = line.rstrip("\n").partition(" ")
        _prepare(int(seed))
        if os.fork() == 0:
            with _end_of_process():
                _keep_door(path, walls)


def _prepare(seed: int) -> None:
    """Make what the exercise's probes make of a seed, whoever answers, so that submissions find it made."""
    exercise = importlib.import_module(f"helpers.exercises.{os.environ['GRADED_EXERCISE']}")
    if hasattr(exercise, "prepare") and pick_device().type == "cpu":  # what has used a GPU cannot be forked
        exercise.prepare(seed)
        gc.freeze()


@contextlib.contextmanager
def _end_of_process() -> Iterator[None]:
    """End this process, which was forked, when the block ends, and never come back to its parent's code."""
    try:
        yield
    finally:
        os._exit(0)


def _keep_door(path: str, walls: bool) -> None:
    """Wait at the socket `path` for the kernel of one submission, and fork a server in its walls whenever it asks."""
    die_with_parent()
    adopt_orphans()
    os.setsid()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    print(os.getpid(), flush=True)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os.close(silence)
    kernel, _ = listener.accept()
    listener.close()
    os.unlink(path)  # the kernel is in before any answer runs; nobody else comes in
    limit(int(os.environ.get("GRADING_MEMORY", "0")))
    if walls:
        enter_walls_of(struct.unpack("3i", kernel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        os.environ["HOME"] = "/tmp"
    kernel.sendall(b"r")
    for _ in range(MOST):
        _, descriptors, *_ = socket.recv_fds(kernel, 1, 2)
        if len(descriptors) != 2:  # the kernel has ended
            break
        if os.fork() == 0:
            kernel.close()
            with _end_of_process():
                _serve_forks(*descriptors, walls)
        for descriptor in descriptors:
            os.close(descriptor)
    signal.pause()  # the grader ends this process: until then its number must be no other's


def _serve_forks(listener: int, alive: int, walls: bool) -> None:
    """Be the fork server of one part: multiprocessing's own, which comes with everything imported."""
    os.chdir("/tmp")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if walls:
        give_up_rights()
    die_with_parent()
    forkserver._forkserver.ensure_running = lambda: None  # ranks of the part are forked here, too
    forkserver.main(listener, alive, [])


if __name__ == "__main__":
    main("--walls" in sys.argv)
