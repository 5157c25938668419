"""A fine-tune that can be interrupted: a bar while it runs, and on the disk what it has learned."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

KEEP_EVERY = 10  # steps


def kept_run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, path: Path) -> Iterator[int]:
    """Yield the steps that are still to be made, under a bar, and keep adapter and optimizer in `path`.

    An earlier run that left `path` is taken up where it was last kept. The file is there whole or not at all.

    Args:
        model: of PEFT, with the adapter that is trained.
        steps: in all, those of earlier runs included.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from tqdm.auto import tqdm

    first = 0
    if path.exists():
        state = torch.load(path)
        first = state["step"]
        set_peft_model_state_dict(model, state["adapter"])
        optimizer.load_state_dict(state["optimizer"])
    for step in tqdm(range(first, steps), initial=first, total=steps):
        yield step
        if (step + 1) % KEEP_EVERY == 0 or step + 1 == steps:
            adapter = get_peft_model_state_dict(model)
            draft = path.with_suffix(".part")
            torch.save({"step": step + 1, "adapter": adapter, "optimizer": optimizer.state_dict()}, draft)
            draft.replace(path)
