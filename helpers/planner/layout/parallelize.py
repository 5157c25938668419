"""From a stage on paper to what a rank runs: in which order the techniques are applied.

1. Tensor, context and expert parallelism decide which slice of each weight a rank has at all: `split`.
2. Recomputation wraps whole blocks of these slices: `recompute`.
3. The compiler comes next, and fuses what a block does, its recomputation included: `Trace.compile`.
4. `fully_shard` comes last (`fsdp.py`): it gathers what a block needs before anything in it runs, and frees it then.

Pipeline parallelism is above all of this: it chose the blocks of the stage. The stage stays on the meta device, shapes
without memory, until it is given some. torchtitan's `infra/parallelize.py` has the same order.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .adapters import freeze
from .attention import Wires
from .decoder import Stage
from .dtypes import weight_dtype
from .fsdp import Meshes, shard
from .layout import Layout
from .trace import Trace
from .wire import Wire


@dataclass(frozen=True)
class StageKind:
    """What a stage consists of: blocks without and with experts, and whether it has the embedding and the head.

    Of an encoder-decoder those of the encoder are `dense`, and those of the decoder `mixed`.
    """

    dense: int
    mixed: int
    first: bool
    last: bool


def parallelize(layout: Layout, kind: StageKind, trace: Trace, meshes: Meshes) -> Stage:
    """Return a stage of `layout` as a rank runs it, on the meta device.

    Args:
        layout: who splits what.
        kind: of the stage.
        trace: hears what the wires send, and plays the compiler.
        meshes: of `process_group`.
    """
    stage = split(layout, kind, trace)
    recompute(stage, layout)
    if layout.compile:
        trace.compile(apart=_LOSS if layout.plain_ends else ())
    if layout.zero == "zero3":
        shard(stage, layout, meshes)
    return stage


# -- 1. tensor, context and expert parallelism


def split(layout: Layout, kind: StageKind, trace: Trace) -> Stage:
    """Return the rank's slices of the stage: every layer is built as narrow as a rank holds it."""
    wires = (Wire(name, getattr(layout, name), trace) for name in ("tensor", "context", "expert"))
    layers = [layout.arch.first_blocks - 1 - i for i in range(kind.dense)]
    layers += [layout.arch.first_blocks + i for i in range(kind.mixed)]
    with _disable_current_modes(), torch.device("meta"):
        stage = Stage(layout, Wires(*wires), layers, (kind.first, kind.last)).to(weight_dtype(layout))
    if layout.lora_rank:
        freeze(stage)
    return stage


# -- 2. recomputation


def recompute(stage: Stage, layout: Layout) -> None:
    """Let every, or every few, blocks run again in the backward pass, as a whole or but for what is dear."""
    fused = layout.engine == "megatron" and layout.recompute == "selective"  # its fused attention does so anyway
    if layout.recompute == "none" or fused:
        return
    how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "determinism_check": "none"}
    if layout.recompute == "selective":
        how["context_fn"] = _keep_products
    for block in [*list(stage.blocks)[:: layout.recompute_every], *(each.block for each in stage.further)]:
        block.forward = partial(checkpoint, block.forward, **how)


_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
_KEPT = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)


def _keep_products() -> tuple[Any, Any]:
    """Return the contexts of selective recomputation: attention and every second product are kept, as in torchtitan."""
    seen = {False: 0, True: 0}

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if func in _PRODUCTS:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = func in _KEPT
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


# -- 3. the compiler

_LOSS = (  # which a loop around a compiled model leaves to eager mode
    *("aten._log_softmax", "aten.nll_loss_forward"),
    *("aten._log_softmax_backward_data", "aten.nll_loss_backward"),
)
