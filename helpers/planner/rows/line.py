"""A line of a file of runs, read as a layout on a cluster."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..catalog.clusters import Cluster, find_cluster
from ..catalog.gpus import GIGA, gpu_words
from ..catalog.layout_rates import LayoutRates, layout_rates
from ..config import RecipeError
from ..importers.names import catalog_name
from ..layout.arch import Arch
from ..layout.layout import Layout
from ..layout.layout_plan import LayoutPlan
from ..layout.rank_memory import RankMemory
from ..rates.measured import Measured
from .adapters import adapters_of
from .experts import dispatch_of
from .habits import GENERIC, Habits, habits_of

_PRECISIONS = ("fp32", "bf16", "bf16-amp", "fp16-amp", "fp8")
_MIXED = {"bf16": "bf16-amp", "bfloat16": "bf16-amp", "fp16": "fp16-amp", "float16": "fp16-amp"}
_FOUR_BITS = ("nvfp4", "mxfp4", "fp4")
_LLAMA_3 = 128256  # the vocabulary of a family whose perceptrons have gates, and which trains on 8,192 tokens
_GPUS = (  # whole parts at the beginning of a GPU's name -> its cluster; the first that matches
    ("a100-pcie", "pcie-8x-a100"),
    ("h100-96gb", "h100-96gb"),
    ("h100-96", "h100-96gb"),
    ("h100-95gb", "h100-96gb"),
    ("h100-95", "h100-96gb"),
    ("h100", "dgx-h100"),
    ("a100-40gb", "dgx-a100-40gb"),
    ("a100-40", "dgx-a100-40gb"),
    ("a100", "dgx-a100"),
)


_MOST_EXPERT_RANKS = 64
_WAITS = 4  # micro-batches of a published pipeline for each of its stages
_FAST_CUDNN = "2024-07"


@dataclass
class Question:
    """What a line asks.

    Attributes:
        assumed: what the line does not say, with the value taken for it.
        pace: measured / forecast seconds on the machine of its source.
        logs: whose memory its source prints: the "fullest" rank's, or that of the "first" or the "last" stage.
    """

    layout: Layout
    cluster: Cluster
    assumed: dict[str, Any] = field(default_factory=dict)
    logs: str = "fullest"
    pace: float = 1.0

    @property
    def own_rates(self) -> list[LayoutRates]:
        """The rates of the source's machine, where its pace is known."""
        return [replace(layout_rates(), measured=Measured(pace=self.pace))] if self.pace != 1 else []

    def logged(self, plan: LayoutPlan) -> RankMemory:
        """Return the rank whose memory the source prints."""
        return {"first": plan.ranks[0], "last": plan.ranks[-1]}.get(self.logs, plan.worst)


class _Reader:
    """Reads values of a line, and notes what it does not say."""

    def __init__(self, line: Mapping[str, Any]) -> None:
        self._line = line
        self.assumed: dict[str, Any] = {}

    def whole(self, name: str, default: int | None = None, *, note: bool = True) -> int | None:
        """Return a whole number of the line, or the default."""
        value = self(name, default, note=note)
        return value if value is None else _whole(value, name)

    def __call__(self, name: str, default: Any = None, *, note: bool = True) -> Any:
        value = self._line.get(name)
        if value is None:
            if note and default is not None:
                self.assumed[name] = default
            return default
        return value


def _whole(value: Any, name: str, least: int = 1) -> int:
    """Return a value as a whole number.

    Raises:
        RecipeError: it is none, or too small.
    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or not least <= number < 1e12 or number != int(number):
        raise RecipeError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
    return int(number)


def read_line(line: Mapping[str, Any]) -> Question:
    """Return what a line asks.

    Raises:
        RecipeError: it contradicts itself, or asks for what is not planned.
    """
    read = _Reader(line)
    habits = habits_of(str(read("framework", GENERIC)), read("engine", note=False))
    arch = _arch(read, habits)
    cluster = _cluster(read, habits)
    sizes, data = _sizes(read, habits, arch.experts)
    zero, shard, replicate = _sharding(read, habits, data)
    micro_batch = read.whole("micro_batch_size", 1)
    micro_batches = _micro_batches(read, micro_batch, data, _usual_count(habits, sizes["pipeline"]))
    virtual = read.whole("virtual_stages", _chunks(read, habits, arch.layers, (sizes["pipeline"], micro_batches)))
    schedule = _schedule(read, habits, sizes["pipeline"], virtual)
    recompute, every = _recompute(read, habits, arch)
    precision, engine = _precision(read, habits), _engine(habits, zero)
    four_bits = _four_bits(read, cluster)
    piped = sizes["pipeline"] > 1
    whole = {"in pipelines": piped, "unless selective": recompute != "selective"}
    splits = habits.sequence_parallel and not whole.get(habits.plain_tokens, False)
    by_tokens = bool(read("sequence_parallel", splits))
    overlaps = bool(read("tensor_overlap", habits.tensor_overlap, note=False))
    layout = Layout(
        arch,
        **sizes,
        sequence_parallel=by_tokens,
        tensor_overlap=overlaps and (habits.as_command or (by_tokens and sizes["tensor"] > 1)),
        schedule=schedule,
        virtual_stages=virtual,
        shard=shard,
        replicate=replicate,
        zero=zero,
        accumulate_whole=bool(read("accumulate_whole", habits.accumulate_whole and zero == "zero3", note=False)),
        plain_ends=bool(read("plain_ends", habits.plain_ends, note=False)),
        reshard_after_forward=bool(read("reshard_after_forward", habits.as_command or not piped, note=False)),
        micro_batch_size=micro_batch,
        micro_batches=micro_batches,
        seq=_length(read, arch, habits),
        precision=precision,
        four_bits=four_bits,
        recompute=recompute,
        recompute_every=every,
        attention=_attention(read, habits, cluster),
        compile=bool(read("compile", habits.fused or (habits.compiles_fp8 and precision == "fp8"))),
        cuda_graphs=bool(read("cuda_graphs", habits.cuda_graphs, note=False)),
        engine=engine,
        deepspeed=habits.deepspeed and engine == "megatron",
        **_of_stages(read, habits, arch.layers, sizes["pipeline"] * virtual),
        **_of_megatron(read, habits, precision),
        **adapters_of(read, habits, precision),
        **dispatch_of(read),
    )
    return _question(read, habits, layout, cluster)


def _sizes(read: _Reader, habits: Habits, experts: int) -> tuple[dict[str, int], int]:
    """Return the ranks along each dimension that splits the model, and those that are left for data."""
    sizes = {name: read.whole(name, 1, note=False) for name in ("tensor", "pipeline", "context", "expert")}
    gpus = read.whole("gpus", 1)
    if habits.spreads_experts and experts and read("expert", note=False) is None:
        ranks = max(1, gpus // max(1, sizes["pipeline"]))
        sizes["expert"] = read("expert", math.gcd(experts, ranks, _MOST_EXPERT_RANKS))
    split = sizes["tensor"] * sizes["pipeline"] * sizes["context"]
    data = gpus // split
    if data < 1 or data * split != gpus:
        raise RecipeError(f"tensor x pipeline x context does not divide {gpus} GPUs.")
    return sizes, data


def _question(read: _Reader, habits: Habits, layout: Layout, cluster: Cluster) -> Question:
    logs = str(read("stage", habits.logs, note=habits.logs != "fullest" and layout.pipeline > 1))
    if logs not in ("fullest", "first", "last"):
        raise RecipeError(f"stage is {logs!r}; choose fullest, first or last.")
    if habits.pace != 1:
        read.assumed["pace"] = habits.pace
    return Question(layout, cluster, read.assumed, logs, habits.pace)


def _attention(read: _Reader, habits: Habits, cluster: Cluster) -> str:
    """Return the attention of a line; Transformer Engine takes cuDNN's on Hopper, and flash attention elsewhere.

    cuDNN's is planned at the speed that arXiv 2407.08608 measured in July 2024 (`chip.py`). Its releases were sped up
    one after the other (its release notes), so an older container is planned at the speed of FlashAttention-2.
    """
    said = str(read("attention", habits.attention, note=False))
    dated = _month(read("software", note=False))
    if said == "fused" and (cluster.gpu.capability or (0, 0))[0] == 9:
        if habits.picks_attention:
            return "cudnn"
        return "flash" if dated and dated < _FAST_CUDNN else said
    return {"unfused": "eager", "sdpa": "fused"}.get(said, said)


def _month(said: Any) -> str:
    """Return the month of a run's software, or "" where the line does not say it.

    Raises:
        RecipeError: it is no month.
    """
    if said is not None and not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", str(said)):
        raise RecipeError(f"software is {said!r}; give the month of the run's container as YYYY-MM.")
    return str(said or "")


def _of_stages(read: _Reader, habits: Habits, layers: int, stages: int) -> dict[str, Any]:
    """Return how blocks are divided among stages, and whether the embedding and the head count as blocks.

    Raises:
        RecipeError: `stage_sizes` are no list of whole numbers.
    """
    sizes = read("stage_sizes", [], note=False)
    if not isinstance(sizes, list | tuple):
        raise RecipeError(f"stage_sizes is {sizes!r}; give a list with the number of blocks of each stage.")
    made_for_it = not sizes and stages > 1 and layers % stages > 0 and (layers + 2) % stages == 0
    ends = read("ends_as_blocks", habits.shares_ends and made_for_it, note=made_for_it and habits.shares_ends)
    return {"ends_as_blocks": bool(ends), "stage_sizes": tuple(_whole(size, "stage_sizes", 0) for size in sizes)}


def _of_megatron(read: _Reader, habits: Habits, precision: str) -> dict[str, Any]:
    """Return what a line says of options that Megatron has, and of how ranks send."""
    own = str(read("transformer_impl", "transformer_engine", note=False))
    if own not in ("transformer_engine", "local"):
        raise RecipeError(f"transformer_impl is {own!r}; choose transformer_engine or local.")
    return {
        "own_modules": own == "local",
        "packed": bool(read("packed", habits.packed, note=False)),
        "head_dummy": bool(read("head_dummy", habits.head_dummy, note=False)),
        "buffer_passes": bool(read("buffer_passes", habits.buffer_passes, note=False)),
        "narrow_gradients": not read("wide_gradients", not (habits.deepspeed and precision == "fp16-amp"), note=False),
        "loss": _loss(read("fused_loss", False, note=False), habits),
        "deferred_logits": _whole(read("deferred_logits", 0, note=False), "deferred_logits", -1),
        "micro_batch_group": _whole(read("micro_batch_group", 0, note=False), "micro_batch_group", 0),
        "dropout": _rate(read, habits),
        "data_overlap": bool(read("data_overlap", habits.data_overlap, note=False)),
        "context_method": _SENT.get(said := str(read("context_method", "ring", note=False)), said),
        "attention_mask": bool(read("attention_mask", habits.attention_mask, note=False)),
        "deterministic": (deterministic := bool(read("deterministic", False, note=False))),
        "large_workspace": bool(read("large_workspace", deterministic, note=False)),
        "softmax_fusion": bool(read("softmax_fusion", True, note=False)),
        "target_seq": _whole(read("target_seq", 0, note=False), "target_seq", 0),
        "wgrad_fusion": bool(read("wgrad_fusion", not habits.deepspeed, note=False)),
    }


_SENT = {"a2a": "all-to-all", "p2p": "ring"}  # as Megatron's cp-comm-type has them


def _loss(said: Any, habits: Habits) -> str:
    """Return the loss of a line: `fused_loss` is true for the framework's own, or names Megatron's implementation."""
    kind = {True: habits.fused_loss, False: "in-place", "native": "fused", "te": "te"}.get(
        said if isinstance(said, bool | str) else ""
    )
    if kind is None:
        raise RecipeError(f"fused_loss is {said!r}; choose true, false, native or te.")
    return kind


def _rate(read: _Reader, habits: Habits) -> float:
    rate = read("dropout", habits.dropout, note=habits.dropout > 0)
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise RecipeError(f"dropout is {rate!r}; it must be at least 0 and less than 1.")
    return float(rate)


def _arch(read: _Reader, habits: Habits) -> Arch:
    name, sizes = read("model", note=False), read("arch", note=False)
    if sizes and not isinstance(sizes, Mapping):
        raise RecipeError(f"arch is {sizes!r}; give its sizes by name: layers, hidden, heads.")
    if not sizes:
        if not name:
            raise RecipeError("A line must name its model or give its arch.")
        from ..catalog.archs import arch_of

        return arch_of(_known(str(name)))

    def size(key: str, default: Any) -> Any:
        value = sizes.get(key)
        if value is None and default is not None:
            read.assumed[f"arch.{key}"] = default
        return default if value is None else value

    def number(key: str, default: int | None = None, least: int = 1) -> int:
        value = size(key, default)
        if value is None:
            raise RecipeError(f"arch does not give {key}; it needs at least layers, hidden and heads.")
        return _whole(value, f"arch.{key}", least)

    hidden, heads = number("hidden"), number("heads")
    # Four times as wide and without a gate: GPT-3 and Nemotron. Of Llama's families only small ones are as wide.
    plain = sizes.get("ffn") == 4 * hidden and sizes.get("vocab") != _LLAMA_3 and sizes.get("layer_norm") is not False
    gated = bool(size("gated", habits.gated and not plain))
    experts = _whole(sizes.get("experts") or 0, "arch.experts", 0)
    wanted = (*_OF_LATENT, *_OF_OTHER_BLOCKS, *(_OF_EXPERTS if experts else ()))
    optional = {name: _whole(sizes.get(name) or 0, f"arch.{name}", 0) for name in wanted}
    if experts:
        optional["shared_experts"] = _shared(sizes.get("shared_experts") or 0)
    ffn = number("ffn", _round(8 * hidden / 3, 256) if gated else 4 * hidden)
    if experts:
        optional["moe_ffn"] = optional["moe_ffn"] or ffn
        if not optional["experts_per_token"]:  # Mixtral's; of many small ones, DeepSeek's and Qwen's
            optional["experts_per_token"] = read.assumed["arch.experts_per_token"] = min(
                experts, 2 if experts < 32 else 8
            )
    return Arch(
        layers=number("layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("kv_heads", heads),
        head_dim=number("head_dim", max(1, hidden // heads)),
        ffn=ffn,
        vocab=number("vocab", habits.vocab),
        gated=gated,
        tied=bool(size("tied", False)),
        bias=bool(size("bias", habits.layer_norm)),
        layer_norm=bool(size("layer_norm", habits.layer_norm)),
        positions=_whole(size("positions", 2048 if habits.layer_norm else 0), "arch.positions", 0),
        experts=experts,
        **{name: bool(sizes.get(name, False)) for name in ("qk_norm", "masked", "pairs")},
        **optional,
    )


_OF_LATENT = ("q_lora", "kv_lora", "rope_dim", "value_dim")
_OF_OTHER_BLOCKS = ("encoder_layers", "further")
_OF_EXPERTS = ("experts_per_token", "moe_ffn", "dense_layers")


def _shared(said: Any) -> float:
    """Return how many experts every token visits: also a part of one.

    Raises:
        RecipeError: it is no number, or negative.
    """
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said < 1e6:
        raise RecipeError(f"arch.shared_experts is {said!r}; it must be a number of at least 0.")
    return said


def _round(value: float, multiple: int) -> int:
    return int(-(-value // multiple) * multiple)


def _known(name: str) -> str:
    """Return the catalog's name of a model that is called as on the Hub; a file's path as it is."""
    return name if Path(name).exists() else catalog_name(name) or name


def _cluster(read: _Reader, habits: Habits) -> Cluster:
    name = str(read("gpu", "h100")).lower().replace(" ", "-").replace("_", "-")
    node = read("gpus_per_node", note=False)
    words = gpu_words(name)
    known = next((cluster for parts, cluster in _GPUS if f"{'-'.join(words)}-".startswith(f"{parts}-")), None)
    if words[:1] == ["h100"] and {"pcie", "nvl"} & set(words):  # other chips than the SXM's
        known = None
    if known == "dgx-h100" and habits.slow_h100 and not {"80", "80gb"} & set(words):  # it says which
        known = read.assumed["gpu"] = "h100-96gb"
    cluster = find_cluster(known or name, None if node is None else _whole(node, "gpus_per_node"))
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
    zero = _STAGES.get(str(zero).lower().removeprefix("zero").lstrip("-"), zero)
    if isinstance(shard, str):  # some say what is sharded there
        zero, shard = {"none": "none", "hsdp": "zero3"}.get(shard, shard), None
    replicate = None if replicate is None else _whole(replicate, "replicate")
    shard = max(1, data // (replicate or 1)) if shard is None else _whole(shard, "shard")
    replicate = replicate or max(1, data // shard)
    if shard * replicate != data:
        raise RecipeError(f"shard {shard} x replicate {replicate} are not the {data} data ranks.")
    return str(zero), shard, replicate


_STAGES = {"0": "none", "1": "zero1", "2": "zero2", "3": "zero3", "ddp": "none", "fsdp": "zero3"}


def _usual_count(habits: Habits, stages: int) -> int:
    """Return the micro-batches of a step of which nobody says how many it has."""
    return stages if habits.as_command or stages == 1 else _WAITS * stages


def _micro_batches(read: _Reader, size: int, data: int, usual: int) -> int:
    """Return the micro-batches of a step; `usual` ones where the line does not say."""
    steps = read.whole("gradient_accumulation_steps", note=False)
    batch = read.whole("global_batch_size", note=False)
    if steps is not None:
        return steps
    if batch is None:
        read.assumed["gradient_accumulation_steps"] = usual
        return usual
    count, rest = divmod(batch, size * data)
    if rest or not count:
        raise RecipeError(
            f"global_batch_size {batch} is not a multiple of micro_batch_size x data ranks = {size * data}."
        )
    return count


def _schedule(read: _Reader, habits: Habits, stages: int, virtual: int) -> str:
    if stages == 1:
        return "1f1b"
    interleaves = virtual > 1 and not habits.as_command
    said = str(read("schedule", "interleaved" if interleaves else "1f1b")).lower().replace("_", "-")
    known = next((name for word, name in _SCHEDULES.items() if word in said), said)
    return "interleaved" if interleaves and known == "1f1b" else known


_SCHEDULES = {
    "interleaved": "interleaved",
    "zero": "zero-bubble",
    "zb": "zero-bubble",
    "1f1b": "1f1b",
    "gpipe": "gpipe",
}


def _chunks(read: _Reader, habits: Habits, layers: int, sizes: tuple[int, int]) -> int:
    """Return how many stages a rank has where nobody says.

    Of a framework that always interleaves them, one a block; else two where the line says that they are interleaved, as
    torchtitan has it (torchtitan/distributed/pipeline_parallel.py).
    """
    stages, micro_batches = sizes
    if stages == 1 or layers < 2 * stages or habits.as_command:
        return 1
    if habits.schedule == "interleaved":
        return layers // stages if layers % stages == micro_batches % stages == 0 else 1
    return 2 if "interleaved" in str(read("schedule", note=False)).lower() else 1


def _recompute(read: _Reader, habits: Habits, arch: Arch) -> tuple[str, int]:
    said = read("checkpointing", habits.recompute)
    if isinstance(said, Mapping):  # as Megatron has it
        said = said.get("granularity")
    said = "none" if said in (None, "", "null", "None", False) else str(said)
    if said.startswith("every"):
        every = said.rpartition("-")[2]
        return "full", min(int(every), arch.layers) if every.isdigit() else 1
    return said, 1


def _precision(read: _Reader, habits: Habits) -> str:
    said = str(read("precision", habits.precision)).lower().removesuffix("-mixed").removesuffix("_mixed")
    if habits.engine == "megatron" and said in _MIXED and not habits.as_command:
        read.assumed["precision"] = said = _MIXED[said]  # Megatron's --bf16 and --fp16 keep FP32 masters
    if said == "mxfp8" or said in _FOUR_BITS or re.fullmatch(r"fp8[-_]\w+", said):  # whatever scales its numbers
        read.assumed["precision"] = f"fp8, in place of {said}"
        said = "fp8"
    if said not in _PRECISIONS:
        raise RecipeError(f"precision is {said!r}; choose one of {', '.join(_PRECISIONS)}.")
    if habits.casts_weights and said == "bf16-amp":
        read.assumed["precision"] = "bf16: weights and optimizer's state are cast, too"
        return "bf16"
    return said


def _four_bits(read: _Reader, cluster: Cluster) -> bool:
    """Return whether matmuls run in four bits: a line says so, and its GPU has units for that."""
    said = str(read("precision", "", note=False)).lower()
    if said not in _FOUR_BITS or not cluster.gpu.flops4:
        return False
    read.assumed["precision"] = f"{said}: matmuls at the share of the data sheet that 8 bits reach, memory as in fp8"
    return True


def _length(read: _Reader, arch: Arch, habits: Habits) -> int | None:
    """Return the tokens of a sequence; where a line does not say, 4096, or in NeMo's recipes the model's own length.

    Of a line that names no framework at most as many as its model reads.

    Raises:
        RecipeError: a model that such a line names reads fewer.
    """
    if not habits.as_command:
        return read.whole("seq", _usual_length(arch, habits))
    from ..catalog.models import find_context

    named = read("model", note=False) and not read("arch", note=False)
    reads, extends = find_context(_known(str(read("model")))) if named else (arch.positions, True)
    seq = read.whole("seq", min(4096, reads or 4096))
    if seq > reads and not extends:
        raise RecipeError(f"{read('model')} takes at most {reads} tokens; seq is {seq}.")
    return seq


def _usual_length(arch: Arch, habits: Habits) -> int:
    if not habits.own_length:
        return 4096
    return 8192 if arch.vocab == _LLAMA_3 else arch.positions or 4096


def _engine(habits: Habits, zero: str) -> str:
    if habits.as_command:
        return habits.engine
    return "torchtitan" if habits.engine == "megatron" and zero == "zero3" else habits.engine
