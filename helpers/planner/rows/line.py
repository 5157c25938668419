"""A line of a file of runs, read as a layout on a cluster."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..catalog.clusters import Cluster, find_cluster
from ..catalog.gpus import GIGA
from ..layout.arch import Arch
from ..layout.layout import Layout
from ..recipe import RecipeError
from .habits import Habits, habits_of

_PRECISIONS = {"fp32": "fp32", "bf16": "bf16", "bf16-amp": "bf16-amp", "fp16-amp": "fp16-amp", "fp8": "fp8"}
_GPUS = (  # a part of a GPU's name -> its cluster; the first that matches
    ("gb300", "gb300"),
    ("gb200", "gb200"),
    ("b300", "dgx-b300"),
    ("b200", "dgx-b200"),
    ("h100-96", "h100-96gb"),
    ("h100-95", "h100-96gb"),
    ("h200", "dgx-h200"),
    ("h100", "dgx-h100"),
    ("a100-40", "dgx-a100-40gb"),
    ("a800", "a800"),
    ("a100", "dgx-a100"),
    ("4090", "8x-4090"),
)


_MOST_EXPERT_RANKS = 64


@dataclass
class Question:
    """What a line asks.

    Attributes:
        assumed: what the line does not say, with the value taken for it.
    """

    layout: Layout
    cluster: Cluster
    assumed: dict[str, Any] = field(default_factory=dict)


class _Reader:
    """Reads values of a line, and notes what it does not say."""

    def __init__(self, line: Mapping[str, Any]) -> None:
        self._line = line
        self.assumed: dict[str, Any] = {}

    def __call__(self, name: str, default: Any = None, *, note: bool = True) -> Any:
        value = self._line.get(name)
        if value is None:
            if note and default is not None:
                self.assumed[name] = default
            return default
        return value


def read_line(line: Mapping[str, Any]) -> Question:
    """Return what a line asks.

    Raises:
        RecipeError: it contradicts itself, or asks for what is not planned.
    """
    read = _Reader(line)
    source, habits = habits_of(str(line.get("id", "")))
    read.assumed["framework"] = source
    if read("lora_rank", 0, note=False):
        raise RecipeError("LoRA is planned on one GPU, by a recipe; layouts train whole models.")
    arch = _arch(read, habits)
    cluster = _cluster(read, habits)
    sizes = {name: int(read(name, 1, note=False)) for name in ("tensor", "pipeline", "context", "expert")}
    gpus = int(read("gpus", 1))
    if habits.spreads_experts and arch.experts and line.get("expert") is None:
        ranks = max(1, gpus // max(1, sizes["pipeline"]))
        sizes["expert"] = read("expert", math.gcd(arch.experts, ranks, _MOST_EXPERT_RANKS))
    data = gpus // (sizes["tensor"] * sizes["pipeline"] * sizes["context"])
    if data < 1 or data * sizes["tensor"] * sizes["pipeline"] * sizes["context"] != gpus:
        raise RecipeError(f"tensor x pipeline x context does not divide {gpus} GPUs.")
    zero, shard, replicate = _sharding(read, habits, data)
    micro_batch = int(read("micro_batch_size", 1))
    micro_batches = _micro_batches(read, micro_batch, data, sizes["pipeline"])
    virtual = int(read("virtual_stages", _chunks(habits, arch.layers, sizes["pipeline"], micro_batches)))
    schedule = _schedule(read, habits, sizes["pipeline"], virtual)
    recompute, every = _recompute(read, habits, arch)
    precision = _precision(read, habits)
    whole = {"in pipelines": sizes["pipeline"] > 1, "unless selective": recompute != "selective"}
    splits = habits.sequence_parallel and not whole.get(habits.plain_tokens, False)
    by_tokens = bool(read("sequence_parallel", splits))
    layout = Layout(
        arch,
        **sizes,
        sequence_parallel=by_tokens,
        tensor_overlap=habits.tensor_overlap and by_tokens and sizes["tensor"] > 1,
        schedule=schedule,
        virtual_stages=virtual,
        shard=shard,
        replicate=replicate,
        zero=zero,
        accumulate_whole=habits.accumulate_whole and zero == "zero3",
        reshard_after_forward=sizes["pipeline"] == 1,
        micro_batch_size=micro_batch,
        micro_batches=micro_batches,
        seq=int(read("seq", 4096)),
        precision=precision,
        recompute=recompute,
        recompute_every=every,
        attention=habits.attention,
        compile=bool(read("compile", habits.fused or (habits.compiles_fp8 and precision == "fp8"))),
        cuda_graphs=habits.cuda_graphs,
        engine=_engine(habits, zero, precision),
    )
    return Question(layout, cluster, read.assumed)


def _arch(read: _Reader, habits: Habits) -> Arch:
    name, sizes = read("model", note=False), read("arch", note=False)
    if not sizes:
        if not name:
            raise RecipeError("A line names its model, or gives its arch.")
        from ..catalog.archs import arch_of

        return arch_of(str(name))

    def size(key: str, default: Any) -> Any:
        value = sizes.get(key)
        if value is None and default is not None:
            read.assumed[f"arch.{key}"] = default
        return default if value is None else value

    hidden, heads = int(sizes["hidden"]), int(sizes["heads"])
    gated = bool(size("gated", habits.gated))
    experts = int(sizes.get("experts") or 0)
    return Arch(
        layers=int(sizes["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(size("kv_heads", heads)),
        head_dim=int(size("head_dim", hidden // heads)),
        ffn=int(size("ffn", _round(8 * hidden / 3, 256) if gated else 4 * hidden)),
        vocab=int(size("vocab", habits.vocab)),
        gated=gated,
        tied=bool(size("tied", False)),
        bias=habits.layer_norm,
        layer_norm=habits.layer_norm,
        positions=2048 if habits.layer_norm else 0,
        experts=experts,
        experts_per_token=int(sizes.get("experts_per_token") or 0),
        shared_experts=int(sizes.get("shared_experts") or 0),
        moe_ffn=int(sizes.get("moe_ffn") or sizes.get("ffn") or 0) if experts else 0,
        dense_layers=int(sizes.get("dense_layers") or 0),
    )


def _round(value: float, multiple: int) -> int:
    return int(-(-value // multiple) * multiple)


def _cluster(read: _Reader, habits: Habits) -> Cluster:
    name = str(read("gpu", "h100")).lower().replace(" ", "-").replace("_", "-")
    node = read("gpus_per_node", note=False)
    known = next((cluster for part, cluster in _GPUS if part in name), None)
    if known == "dgx-h100" and habits.slow_h100:
        known = read.assumed["gpu"] = "h100-96gb"
    cluster = find_cluster(known or name, int(node) if node else None)
    if node is None:
        read.assumed["gpus_per_node"] = cluster.node
    if habits.network:
        read.assumed["network GB/s a GPU"] = habits.network
        cluster = replace(cluster, outside=habits.network * GIGA)
    return cluster


def _sharding(read: _Reader, habits: Habits, data: int) -> tuple[str, int, int]:
    """Return what is sharded, over how many ranks, in how many copies."""
    shard, replicate = read("shard", note=False), read("replicate", note=False)
    zero = read("zero", habits.zero)
    zero = {0: "none", 1: "zero1", 2: "zero2", 3: "zero3", "ddp": "none", "fsdp": "zero3"}.get(zero, zero)
    if isinstance(shard, str):  # some say what is sharded there
        zero, shard = {"none": "none", "hsdp": "zero3"}.get(shard, shard), None
    if shard is None:
        shard = data // int(replicate or 1)
    replicate = int(replicate or data // int(shard))
    if int(shard) * replicate != data:
        raise RecipeError(f"shard {shard} x replicate {replicate} are not the {data} data ranks.")
    return str(zero), int(shard), replicate


def _micro_batches(read: _Reader, size: int, data: int, stages: int) -> int:
    steps, batch = read("gradient_accumulation_steps", note=False), read("global_batch_size", note=False)
    if steps is not None:
        return int(steps)
    if batch is None:
        read.assumed["gradient_accumulation_steps"] = 1 if stages == 1 else 4 * stages
        return 1 if stages == 1 else 4 * stages
    count, rest = divmod(int(batch), size * data)
    if rest or not count:
        raise RecipeError(f"global_batch_size {batch} is no multiple of micro_batch_size x data ranks = {size * data}.")
    return count


def _schedule(read: _Reader, habits: Habits, stages: int, virtual: int) -> str:
    if stages == 1:
        return "1f1b"
    said = str(read("schedule", "interleaved" if virtual > 1 else "1f1b")).lower()
    return "interleaved" if virtual > 1 and said == "1f1b" else said


def _chunks(habits: Habits, layers: int, stages: int, micro_batches: int) -> int:
    """Return how many stages a rank has where nobody says: one a block, for a framework that interleaves them."""
    interleaves = habits.schedule == "interleaved" and stages > 1 and layers % stages == micro_batches % stages == 0
    return layers // stages if interleaves else 1


def _recompute(read: _Reader, habits: Habits, arch: Arch) -> tuple[str, int]:
    said = str(read("checkpointing", habits.recompute))
    if said.startswith("every"):
        every = said.rpartition("-")[2]
        return "full", min(int(every), arch.layers) if every.isdigit() else 1
    return said, 1


def _precision(read: _Reader, habits: Habits) -> str:
    said = str(read("precision", habits.precision))
    if said not in _PRECISIONS:
        raise RecipeError(f"precision is {said!r}; choose one of {', '.join(_PRECISIONS)}.")
    return _PRECISIONS[said]


def _engine(habits: Habits, zero: str, precision: str) -> str:
    return "torchtitan" if habits.engine == "megatron" and zero == "zero3" else habits.engine
