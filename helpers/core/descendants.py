"""End a process together with all its descendants: its children, theirs and so on."""

import contextlib
from collections.abc import Collection

import psutil


def end_process(pid: int) -> None:
    """Kill a process and all its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        root.suspend()  # so that it starts no others meanwhile
        end_descendants(root)
        root.kill()


def end_descendants(root: psutil.Process, spare: Collection[psutil.Process] = ()) -> None:
    """Kill all descendants of `root` except those in `spare`, until there are none.

    A process whose own parent has ended is found, too, if `root` adopts orphans (a "child subreaper" on Linux).
    """
    for _ in range(20):  # a process that is killed may just have started another
        family = [
            process for process in root.children(recursive=True) if process not in spare and not _has_ended(process)
        ]
        if not family:
            return
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=0.5)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
