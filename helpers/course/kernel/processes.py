"""Make sure that processes leave nothing running, and take no more than they may."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends, however it ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that it can be found and ended. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit(memory: int) -> None:
    """Set limits that all descendants inherit: memory and file sizes in bytes, no core dumps."""
    try:
        import resource
    except ImportError:  # Windows: the grader watches from outside
        return
    if memory:  # 0 on a GPU machine: CUDA reserves far more addresses than it uses
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
