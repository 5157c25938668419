"""The phases of a training step."""

from typing import Literal, get_args

Phase = Literal["data", "forward", "recompute", "backward", "communication", "optimizer"]
PHASES: tuple[Phase, ...] = get_args(Phase)


def range_phase(label: str) -> Phase | None:
    """Return the phase of a range that PyTorch or its user labels in the profiler; None if the label says nothing.

    PyTorch labels the steps of its optimizers and the waiting for its data loader. A loader of one's own can be put
    into `with torch.profiler.record_function("data")`.
    """
    if label == "data" or label.startswith("enumerate(DataLoader)#"):
        return "data"
    return "optimizer" if label.startswith("Optimizer.") else None
