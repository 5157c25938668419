"""Work through a list in two processes.

>>> parallel_map(train, seeds)  # doctest: +SKIP

Each process takes the next item as soon as it is free, so put the long ones first. The processes stay for the next
call, which spares them the imports.

On a machine with several GPUs both use the first, as the notebook does: items are run to be compared, and the other
GPUs may be of another kind.
"""

import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config

PROCESSES = 2


def parallel_map(work: Callable[[Any], Any], items: Iterable[Any], timeout: float = 600.0) -> list[Any]:
    """Return [work(item) for item in items], computed in two processes that share this machine's cores.

    Args:
        work: may be defined in a cell; what it uses and what it returns is copied from process to process.
        items: any number of them.
        timeout: seconds that one item may take.

    Raises:
        TimeoutError: an item took too long.
        joblib.externals.loky.process_executor.TerminatedWorkerError: a process died.
        Exception: whatever `work` raised. The other items are given up.
    """
    threads = max(1, torch.get_num_threads() // PROCESSES)
    with parallel_config("loky", inner_max_num_threads=threads), warnings.catch_warnings():
        # A process that has grown by 300 MB is replaced, with a warning; importing PyTorch's compiler takes as much.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        # One item at a time, in the order given; arrays are copied, not mapped as read-only files.
        run = Parallel(PROCESSES, pre_dispatch="all", batch_size=1, timeout=timeout, max_nbytes=None)
        try:
            return run(delayed(_call)(work, item) for item in items)
        except multiprocessing.TimeoutError:
            raise TimeoutError(f"An item took more than {timeout:g} s.") from None


def _call(work: Callable[[Any], Any], item: Any) -> Any:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook handles an interrupt: it ends the processes
    return work(item)
