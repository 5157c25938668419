"""End all that descends from a process.

A process whose own parent has ended is found, too, if the root adopts orphans (see `processes.adopt_orphans`).
"""

import contextlib

import psutil


def end_descendants(root: psutil.Process) -> None:
    """Kill the children of `root`, theirs and so on, until there is none."""
    for _ in range(20):  # what is killed may just have started another
        family = [process for process in root.children(recursive=True) if not _is_over(process)]
        if not family:
            return
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=0.5)


def _is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
