"""Published runs as lines that the planner reads: names, units and words of fifteen sources made alike.

`python -m tests.planner.layout_runs RUNS.json` writes published_layouts.jsonl: lines that `plan --rows` reads, and what
was measured. Sources: Megatron Bridge, Megatron-LM, NeMo, NeMo Automodel (NVIDIA), llm-foundry (MosaicML),
torchtitan, torchtune and torchao (PyTorch), vTrain (VIA), InternEvo (InternLM), KempnerForge (Kempner Institute),
fms-fsdp (IBM), calculon, ColossalAI and EasyContext.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.planner.config import RecipeError
from helpers.planner.layout.layout import Layout
from helpers.planner.rows.line import read_line

RUNS = Path(__file__).with_name("published_layouts.jsonl")

ARCHS: dict[str, dict[str, Any]] = {
    "llama-3-8b": {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 128256,
        "gated": True,
    },
    "llama-2-7b": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000, "gated": True},
    "llama-70b": {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn": 28672,
        "vocab": 128256,
        "gated": True,
    },
    "llama-2-70b": {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn": 28672,
        "vocab": 32000,
        "gated": True,
    },
    "llama-405b": {
        "layers": 126,
        "hidden": 16384,
        "heads": 128,
        "kv_heads": 8,
        "ffn": 53248,
        "vocab": 128256,
        "gated": True,
    },
    "qwen3-14b": {
        "layers": 40,
        "hidden": 5120,
        "heads": 40,
        "kv_heads": 8,
        "ffn": 17408,
        "vocab": 151936,
        "gated": True,
    },
    "internlm-7b": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 103168, "gated": True},
    "internlm-20b": {"layers": 60, "hidden": 5120, "heads": 40, "ffn": 13824, "vocab": 103168, "gated": True},
}


def _moe(layers: int, hidden: int, heads: tuple[int, int, int], experts: tuple[int, ...], vocab: int) -> dict[str, Any]:
    """Return an arch; heads: queries, keys and values, size; experts: how many, chosen, width, shared, dense, ffn."""
    count, chosen, width, shared, dense, ffn = experts
    q, kv, head = heads
    return {
        "layers": layers, "hidden": hidden, "heads": q, "kv_heads": kv, "head_dim": head, "ffn": ffn, "vocab": vocab,
        "gated": True, "experts": count, "experts_per_token": chosen, "shared_experts": shared, "moe_ffn": width,
        "dense_layers": dense,
    }  # fmt: skip


ARCHS |= {
    "qwen3-30b": _moe(48, 2048, (32, 4, 128), (128, 8, 768, 0, 0, 6144), 151936),
    "qwen3-235b": _moe(94, 4096, (64, 4, 128), (128, 8, 1536, 0, 0, 12288), 151936),
    "gpt-oss-120b": _moe(36, 2880, (64, 8, 64), (128, 4, 2880, 0, 0, 2880), 201088),
}
MODELS = (  # a pattern of a row's model -> its arch, or the name of a model in the catalog
    (r"llama-?3.*405b|llama3.1_405b", "llama-405b"),
    (r"llama-?2-70b", "llama-2-70b"),
    (r"llama-?2-7b", "llama-2-7b"),
    (r"llama-?3.*70b", "llama-70b"),
    (r"llama-?3.*8b", "llama-3-8b"),
    (r"qwen3-14b", "qwen3-14b"),
    (r"qwen3.30b", "qwen3-30b"),
    (r"qwen3.235b", "qwen3-235b"),
    (r"gpt.oss.120b", "gpt-oss-120b"),
    (r"internlm-7b", "internlm-7b"),
    (r"internlm-20b", "internlm-20b"),
    (r"deepseek ?v3( |$)", "deepseek-v3"),
    (r"kimi_k2", "kimi-k2"),
)


class Unusable(ValueError):
    """A row that says too little, or contradicts itself."""


def line_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a published run as a line for `plan --rows`.

    Raises:
        Unusable: it cannot be planned; says why.
    """
    hint = row.get("hint") or {}
    if row.get("suspect"):
        raise Unusable("marked as suspect: " + str(row["suspect"]))
    if "power limited" in str(row.get("gpu")):
        raise Unusable("its GPU had less power, and nobody says how much")
    if str(row.get("task", "")).lower().startswith("lora"):
        raise Unusable("trains adapters")
    get = lambda name: row.get(name) if row.get(name) is not None else hint.get(name)  # noqa: E731
    gpus = row.get("gpus")
    if not gpus:
        raise Unusable("does not say how many GPUs")
    sharding, shard, replicate = _sharding(row)
    line = {
        "id": row["id"],
        "framework": str(row["id"]).rpartition("-")[0],
        **_model(row),
        "gpu": row.get("gpu") or ("B200" if "Blackwell" in str(hint.get("gpu")) else "H100"),
        "gpus": gpus,
        "gpus_per_node": 4 if "4 H200" in str(row.get("cluster")) else None,
        "tensor": row.get("tp"),
        "pipeline": row.get("pp"),
        "virtual_stages": row.get("vp"),
        "context": row.get("cp"),
        "expert": row.get("ep"),
        "zero": sharding,
        "shard": shard,
        "replicate": replicate,
        "micro_batch_size": get("micro_batch"),
        "seq": get("seq_len"),
        "precision": _precision(str(row.get("precision") or "")),
        "checkpointing": _recompute(row, str(get("recompute") or "")),
        "compile": row.get("compile"),
    }
    if str(row["id"]).startswith("easycontext"):  # says so in words
        line["seq"] = 1024 * int(re.search(r"(\d+)K", row["note"])[1])
        line["context"] = gpus if "ring attention" in row["note"] else 1
    if "sequence parallel" in str(row.get("recompute")):
        line["sequence_parallel"] = True
    schedule = str(get("pp_schedule") or "").lower()
    line["schedule"] = "interleaved" if "interleaved" in schedule else "1f1b" if schedule else None
    if row.get("global_batch"):
        line["global_batch_size"] = row["global_batch"]
    elif row.get("grad_accum"):
        line["gradient_accumulation_steps"] = row["grad_accum"]
    dated = re.search(r"H100 \((\d\d)\.(\d\d)", str(row.get("source", {}).get("table")))
    if dated and "H100" in line["gpu"]:  # "LLAMA2-7B H100 (24.03.01)": NVIDIA's containers are named by their month
        line["software"] = f"20{dated[1]}-{dated[2]}"
    if str(row["id"]).startswith("megatron-lm"):  # README.md: "a range of communication optimizations", all of them on
        line |= {"tensor_overlap": True, "data_overlap": True}
    if str(row["id"]).startswith("torchtitan") and (row.get("pp") or 1) > 1 and not row.get("micro_batch"):
        line["micro_batch_size"] = 1
    return {name: value for name, value in line.items() if value is not None}


def _model(row: Mapping[str, Any]) -> dict[str, Any]:
    name, arch = str(row.get("model") or "").lower(), row.get("arch")
    source = str(row["id"]).rpartition("-")[0]
    if not name and source in ("ao",):
        name = "llama-3-8b"  # its hint: likely
    if arch and source not in ("internevo",) and arch.get("layers") and arch.get("width"):
        sizes = {new: arch.get(old) for new, old in _NAMES.items() if isinstance(arch.get(old), int | float)}
        if source == "kempnerforge":
            sizes |= {"gated": True}
            if not isinstance(arch.get("ffn"), int):
                sizes["ffn"] = int(-(-(8 * arch["width"] / 3 * 1.3) // 256) * 256)
        if arch.get("top_k"):
            sizes["experts_per_token"] = arch["top_k"]
        if not isinstance(sizes.get("heads"), int | float):
            raise Unusable("does not say how many heads")
        return {"arch": sizes}
    for pattern, known in MODELS:
        if re.search(pattern, name):
            return {"arch": ARCHS[known]} if known in ARCHS else {"model": known}
    raise Unusable(f"its model is not described: {row.get('model')}")


_NAMES = {
    "layers": "layers", "hidden": "width", "heads": "heads", "kv_heads": "kv_heads", "ffn": "ffn", "vocab": "vocab",
    "experts": "experts", "experts_per_token": "experts_per_token",
}  # fmt: skip


def _sharding(row: Mapping[str, Any]) -> tuple[str | None, int | None, int | None]:
    said, dp = str(row.get("sharding") or "").lower(), row.get("dp")
    source = str(row["id"]).rpartition("-")[0]
    if source == "megatron-bridge":
        if "fsdp" in said:
            return "zero3", None, None
        return "zero1", None, None
    if source == "internevo" and "node" in said:
        data = row["gpus"] // ((row.get("tp") or 1) * (row.get("pp") or 1))
        return "zero1", min(8, data), max(1, data // 8)
    if "hsdp" in said:
        return "zero3", None, None
    if "fsdp" in said or "full_shard" in said or "shard_grad_op" in said:
        return "zero3", None, None
    stage = row.get("zero_stage")
    del dp
    return (f"zero{stage}" if stage else None), None, None


def _precision(said: str) -> str | None:
    low = said.lower()
    if "fp4" in low:
        raise Unusable("trains in four bits")
    if any(word in low for word in ("fp8", "float8", "mxfp8")):
        return "fp8"
    if "pure" in low:
        return "bf16"
    if low.startswith(("fp16", "float16")):
        return "fp16-amp"
    return "bf16-amp" if low else None


def _recompute(row: Mapping[str, Any], said: str) -> str | None:
    low = said.lower()
    if not low:
        return None
    if "solver" in low:
        return "full"
    if "2nd layer" in low or low == "selective layer":
        return "every-2"
    if "selective" in low and str(row["id"]).startswith("fms"):
        return "every-2"
    return "full" if "full" in low else "selective" if "selective" in low else "none"


def measured(row: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Return what was measured: seconds of a step, GiB at the peak and of which kind; None for what is not told."""
    rate = row.get("tok_s_gpu")
    if isinstance(rate, list):
        rate = sum(rate) / len(rate)
    if rate is None and row.get("tok_s_total"):
        rate = row["tok_s_total"] / layout.ranks
    seconds = row.get("step_s") or (layout.tokens / layout.ranks / rate if rate else None)
    if seconds is None and row.get("tflops_gpu"):
        seconds = _flops(row, layout) * layout.tokens / layout.ranks / row["tflops_gpu"] / 1e12
    said = f"{row.get('mem_kind')} {(row.get('hint') or {}).get('mem_kind')} {row.get('note')}"
    said = said.replace("Real Peak", "active")  # as torchtitan's graph trainer calls it
    kind = next((kind for kind in ("reserved", "allocated", "active") if kind in said), None)
    gib = (row.get("derived") or {}).get("mem_gib")
    return {"seconds": seconds, "gib": gib, "kind": kind if gib else None}


def _flops(row: Mapping[str, Any], layout: Layout) -> float:
    """Return the FLOPs that a source counts for a token; NeMo's formula takes attention whole, not its causal half."""
    arch, seq = layout.arch, layout.seq
    whole = str(row["id"]).startswith("nemo")
    return arch.flops_per_token(seq) + (6 * arch.layers * arch.heads * arch.head_dim * seq if whole else 0)


def main() -> None:
    """Write the runs of a file (its path is the only argument) as `published_layouts.jsonl`."""
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"]
    written, left_out = [], Counter[str]()
    for row in rows:
        try:
            line = line_of(row)
            found = measured(row, read_line(line).layout)
        except (Unusable, RecipeError) as reason:
            left_out[str(reason)] += 1
            continue
        source = row["source"]
        page = f"{source['repo']}/{source['path']}"
        written.append(json.dumps(line | {"measured": found, "page": page, "commit": source.get("commit")}))
    RUNS.write_text("\n".join(written) + "\n", encoding="utf-8")
    print(f"{len(written)} of {len(rows)} runs are in {RUNS.name}.")
    for reason, count in left_out.most_common():
        print(f"{count:>4} left out: {reason}")


if __name__ == "__main__":
    main()
