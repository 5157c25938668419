"""The layouts that three formulas can judge: sharded data ranks, tensor ranks and 1F1B."""

import itertools
from collections.abc import Iterator

from ...planner.layout.arch import Arch
from ...planner.layout.layout import Layout


def candidates(arch: Arch, gpus: int, tokens: int, seq: int = 8192) -> Iterator[Layout]:
    """Yield the layouts of `gpus` ranks, with powers of two in each dimension and up to 8 sequences per micro-batch.

    Args:
        arch: of the model.
        gpus: how many.
        tokens: of a step, on all of them.
        seq: tokens in a sequence.
    """
    powers = [2**n for n in range(7)]
    for tensor, pipeline, size in itertools.product(powers, powers, (1, 2, 4, 8)):
        shard, rest = divmod(gpus, tensor * pipeline)
        count, more = divmod(tokens // seq, max(shard, 1) * size)
        if rest or more or not count or not shard or arch.kv_heads % tensor or arch.layers % pipeline:
            continue
        sizes = {"tensor": tensor, "pipeline": pipeline, "shard": shard}
        for recompute in ("none", "full"):
            yield Layout(arch, **sizes, micro_batch_size=size, micro_batches=count, seq=seq, recompute=recompute)
