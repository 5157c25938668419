"""Find the repeated blocks of a model, and checkpoint some of them."""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

Contexts = Callable[[], tuple[AbstractContextManager, AbstractContextManager]]


def _rows_of_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the containers (`ModuleList` or `Sequential`) whose children are the model's blocks.

    The blocks are the most numerous class among those that make up at least half of all repeated parameters: the
    layers of a transformer, the bottlenecks of a ResNet.
    """
    rows = [
        row
        for row in model.modules()
        if isinstance(row, nn.ModuleList | nn.Sequential)
        and len(row)
        and len({type(child) for child in row}) == 1
        and any(True for _ in next(iter(row)).children())
    ]
    held: Counter = Counter()
    count: Counter = Counter()
    for row in rows:
        kind = type(next(iter(row)))
        held[kind] += sum(p.numel() for p in row.parameters())
        count[kind] += len(row)
    large = [kind for kind in held if held[kind] >= max(held.values()) / 2 and count[kind] > 1]
    if not large:
        return []
    chosen = max(large, key=lambda kind: count[kind])
    return [row for row in rows if type(next(iter(row))) is chosen]


def _rows(model: nn.Module) -> list[nn.Module]:
    """Return the containers of the model's blocks; of an encoder-decoder, those of both."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        return _rows_of_blocks(base.get_encoder()) + _rows_of_blocks(base.get_decoder())
    return _rows_of_blocks(model)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of `model`, in order; empty when it has none."""
    return [block for row in _rows(model) for block in row]


class Segment(nn.Module):
    """Several blocks one after the other, checkpointed as one."""

    def __init__(self, blocks: list[nn.Module], contexts: Contexts) -> None:
        super().__init__()
        self.blocks, self._contexts = nn.ModuleList(blocks), contexts

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # models ask their blocks for such things as the kind of attention
            return getattr(super().__getattr__("blocks")[0], name)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the blocks on `x`; the other arguments go to each of them."""
        return _checkpointed(self._run, self._contexts, x, *args, **kwargs)

    def _run(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        for block in self.blocks:
            out = block(x, *args, **kwargs)
            x = out[0] if isinstance(out, tuple) else out
        return out


def _checkpointed(forward: Any, contexts: Contexts, *args: Any, **kwargs: Any) -> Any:
    # Random number states are a few KiB on the host; fake tensors have none.
    how = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": contexts}
    return checkpoint(forward, *args, **how, **kwargs)


def checkpoint_blocks(model: nn.Module, which: str, contexts: Contexts) -> None:
    """Checkpoint the blocks of `model` that `which` names ("every", "every-2" and so on, "sqrt").

    `contexts` makes the two contexts in which blocks run forward and are recomputed.
    """
    rows = _rows(model)
    blocks = [block for row in rows for block in row]
    if which == "sqrt":
        size = math.ceil(math.sqrt(len(blocks)))
        for row in rows:
            children = list(row)
            segments = [Segment(children[i : i + size], contexts) for i in range(0, len(children), size)]
            del row[:]
            for segment in segments:
                row.append(segment)
        return
    stride = int(which.partition("-")[2] or 1)
    for block in blocks[::stride]:
        block.forward = partial(_checkpointed, block.forward, contexts)
