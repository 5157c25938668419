"""What breaks a rank on purpose, in the middle of its training step."""

import os
import signal
import time

import torch
from torch import nn

HANG, DELAY = 1000.0, 0.05  # seconds


def break_here(fault: str | None, where: str, model: nn.Module) -> None:
    """Apply `fault` to this rank, if it belongs at this place in the step.

    Args:
        fault: "kill" sends SIGKILL to this process, "lose node" also to the `torchrun` that started it, "hang" sleeps
            past any time limit, "slow" sleeps 50 ms, "wrong gradient" and "wrong weight" add 1 to one number of the
            first parameter. None breaks nothing.
        where: "before" the all-reduce of the gradients, or "after" the update. Only "wrong weight" comes after.
        model: this rank's replica; before the all-reduce its gradients are those of this rank alone.
    """
    first = next(model.parameters())
    if where == "after":
        if fault == "wrong weight":
            with torch.no_grad():
                first.view(-1)[0] += 1.0
    elif fault in ("kill", "lose node"):
        if fault == "lose node" and "TORCHELASTIC_RUN_ID" in os.environ:  # only if the parent is a torchrun
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "hang":
        time.sleep(HANG)
    elif fault == "slow":
        time.sleep(DELAY)
    elif fault == "wrong gradient":
        first.grad.view(-1)[0] += 1.0
