"""All layouts that a question allows.

Everything that a product of ranks can be is here: each divisor of the GPUs in each dimension. What is left out:
sequence parallelism is always on, blocks are recomputed all or none, and two engines stand for all: torchtitan where
parameters are sharded, Megatron where they are not, each with its own habits. One of Megatron's: where NVLink connects
all tensor ranks, they send in chunks beside their matmuls, which takes no more bytes and never more seconds.
"""

from collections.abc import Iterator
from typing import Any

from ..catalog.clusters import Cluster
from ..config import RecipeError
from ..layout.layout import Layout
from .question import Question


def layouts(question: Question) -> Iterator[Layout]:
    """Yield each layout that answers `question`, good or bad."""
    for gpus in question.gpu_counts:
        for grid in _grids(question, gpus):
            for batch in _batches(question, grid):
                for schedule in _schedules(question, grid, batch):
                    for data in _data(question.cluster, grid):
                        values = {**grid, **batch, **schedule, **data}
                        values.pop("data")
                        try:
                            yield Layout(question.arch, seq=question.seq, precision=question.precision, **values)
                        except RecipeError:
                            continue  # heads, blocks or tokens that do not divide


def divisors(number: int) -> list[int]:
    """Return all divisors of `number`, in order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _grids(question: Question, gpus: int) -> Iterator[dict[str, Any]]:
    """Yield the ranks in each dimension; "data" is what is left for the sequences."""
    arch = question.arch
    for tensor in divisors(gpus):
        if arch.heads % tensor:
            continue
        for pipeline in divisors(gpus // tensor):
            if pipeline > arch.layers:
                continue
            for context in divisors(gpus // tensor // pipeline):
                data = gpus // tensor // pipeline // context
                if question.sequences % data:
                    continue
                for expert in divisors(arch.experts) if arch.experts else [1]:
                    if gpus // pipeline % expert:
                        continue
                    for method in ("ring", "all-to-all") if context > 1 else ("ring",):
                        yield {
                            "tensor": tensor,
                            "pipeline": pipeline,
                            "context": context,
                            "context_method": method,
                            "expert": expert,
                            "data": data,
                        }


def _batches(question: Question, grid: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the sizes and numbers of micro-batches, sizes in powers of 2."""
    each = question.sequences // grid["data"]
    size = 1
    while each % size == 0:
        yield {"micro_batch_size": size, "micro_batches": each // size}
        size *= 2


def _schedules(question: Question, grid: dict[str, Any], batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the orders of micro-batches. More pieces than one where they come out even, and 2 or 4 of any size."""
    stages, count, blocks = grid["pipeline"], batch["micro_batches"], question.arch.layers
    yield {"schedule": "1f1b"}
    if stages == 1:
        return
    yield {"schedule": "gpipe"}
    pieces = [v for v in range(2, blocks // stages + 1) if blocks % (stages * v) == 0 or v in (2, 4)]
    rounds = count // max(1, count // stages)
    for virtual in [1, *pieces]:
        if count % max(1, count // stages) == 0 and rounds * max(1, count // stages) == count:
            yield {"schedule": "zero-bubble", "virtual_stages": virtual}
        if virtual > 1 and count % stages == 0:
            yield {"schedule": "interleaved", "virtual_stages": virtual}


def overlaps(cluster: Cluster, tensor: int) -> bool:
    """Return whether Megatron's `--tp-comm-overlap` works: its kernels write to the other ranks' memory over NVLink."""
    has_nvlink = cluster.gpu.vendor == "nvidia" and cluster.inside > cluster.gpu.link
    return has_nvlink and 1 < tensor <= cluster.node


def _data(cluster: Cluster, grid: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the data ranks split, each with the recomputation that its engine knows."""
    data, alone = grid["data"], grid["data"] * grid["context"] == 1
    megatron = {"engine": "megatron", "shard": data, "tensor_overlap": overlaps(cluster, grid["tensor"])}
    kinds = [{**megatron, "zero": "none"}]
    if not alone:
        kinds.append({**megatron, "zero": "zero1"})
    if grid["tensor"] == grid["pipeline"] == grid["context"] == 1:
        kinds.append({"engine": "torchtitan", "zero": "none", "shard": data})
    for shard in divisors(data):
        if shard * grid["context"] > 1:
            sharded = {"engine": "torchtitan", "zero": "zero3", "shard": shard, "replicate": data // shard}
            kinds += [{**sharded, "reshard_after_forward": again} for again in (True, False)]
    for kind in kinds:
        # Megatron's fused attention recomputes by itself what "selective" would.
        for recompute in ("none", "full") if kind["engine"] == "megatron" else ("none", "selective", "full"):
            yield {**kind, "recompute": recompute}
