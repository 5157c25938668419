"""What PyTorch and other libraries read from the environment when they are imported, or as soon as they log.

So it must be set before; `import helpers` does it, and is therefore the first import of a notebook. Processes that are
started later inherit it. What the user has set already stays.
"""

import logging
import os
import sys
import warnings

_VARIABLES = {
    # The memory meter reads the profiler's log. The profiler announces itself on stderr, and the CPU allocator warns
    # when memory older than the log is freed; the meter knows about both, and learners need not see either.
    "KINETO_LOG_LEVEL": "99",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # Ask the driver whether there is a GPU: initializing CUDA here would break the processes forked from this one.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
# How long a thread of OpenMP that waits for work spins before it sleeps. By default it spins for milliseconds, which
# takes the cores from whoever has work: beside other programs small operations become several times slower. If it slept
# at once, each operation would have to wake it, and small ones become several times slower on a quiet machine. A spin
# of microseconds outlasts the gaps between operations and disturbs nobody (`python -m tests.release.busy_machine`).
SPIN = {
    "GOMP_SPINCOUNT": "2000",  # GNU's OpenMP (PyTorch on Linux): rounds of a loop
    "KMP_BLOCKTIME": "1",  # LLVM's and Intel's (macOS, Windows): milliseconds, of which the default is 200
}
# Optional libraries of transformers report kernels that this machine cannot load; the compiler reports graph breaks and
# recompilations, which the lab on compilation counts and shows.
_CHATTY = (
    "torchao",
    "torch.utils._pytree",
    "torch.utils.cpp_extension",  # finds CUDA's compiler and no GPU
    "bitsandbytes",
    "torch._dynamo",
    "torch.fx.experimental",
)

torch_came_first = False  # so that its threads do what the environment said then, whatever it says now


def set_up() -> None:
    """Set the variables that are not set, and silence what helps nobody."""
    global torch_came_first
    before = dict(os.environ)
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    if _is_passive():
        for name, value in SPIN.items():
            os.environ.setdefault(name, value)
    torch_came_first = "torch" in sys.modules and _is_passive() and not {"OMP_WAIT_POLICY", *SPIN} <= before.keys()
    # transformers has renamed gradient checkpointing; PEFT, and labs that run with older versions, use the old name.
    warnings.filterwarnings("ignore", message="`(is_)?gradient_checkpointing", category=FutureWarning)
    # PyTorch 2.13 renames these two; earlier versions lack the new names
    renamed = "`torch.distributed.(all_gather_into_tensor|reduce_scatter_tensor)` is dep"
    warnings.filterwarnings("ignore", message=renamed, category=FutureWarning)
    quiet_loggers()


def quiet_loggers() -> None:
    """Let chatty libraries report errors only, unless somebody has set a level. Importing PyTorch undoes it."""
    for name in _CHATTY:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.ERROR)


def idle_threads() -> str:
    """Say how long OpenMP's idle threads spin in this process, and why."""
    if torch_came_first:
        return "not set by the course: torch was imported first. Restart, and import helpers first"
    how = "spin briefly, then sleep" if _is_passive() else "spin"
    return f"{how} (OMP_WAIT_POLICY={os.environ['OMP_WAIT_POLICY']})"


def _is_passive() -> bool:
    return os.environ["OMP_WAIT_POLICY"].upper() == "PASSIVE"
