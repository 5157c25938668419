"""Runs of MLPerf, NVIDIA's dgxc-benchmarking, BLOOM's prequel and SimuMax as lines that the planner reads.

Each of these publishes seconds, or bytes, with the configuration beside them, in its own words.
`python -m tests.planner.outside_runs FILE... [--rates FILE] [--write]` plans the rows of files and prints errors by
source, and why rows are left out; `--write` puts the table into docs/accuracy.md. `--rates` plans SimuMax's runs on
B200 once more, with its own table of kernels.
"""

import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from helpers.core.units import GiB
from helpers.planner.rows.answers import answer_rows

from tests.planner.published import TABLE_PAGE, write_between

MARKS = (
    "<!-- all of them: python -m tests.planner.outside_runs FILE... --rates KERNELS.json --write writes this -->",
    "<!-- /all of them -->",
)
_LLAMA = {"gated": True, "layer_norm": False, "bias": False, "positions": 0}
_LLAMA_70B = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, **_LLAMA}
_NEMOTRON = {"gated": False, "layer_norm": True, "bias": False, "positions": 0, "vocab": 256000}
ARCHS: dict[str, dict[str, Any]] = {
    r"llama-2-70b": _LLAMA_70B | {"vocab": 32000},
    r"llama.?3.*405b": {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248, "vocab": 128256}
    | _LLAMA,
    r"llama.?3.*70b": _LLAMA_70B | {"vocab": 128256},
    r"llama.?3.*8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256} | _LLAMA,
    r"gpt-?3 175b|nemo megatron": {"layers": 96, "hidden": 12288, "heads": 96, "ffn": 49152, "vocab": 51200}
    | {"gated": False, "layer_norm": True, "bias": True, "positions": 2048},
    r"nemotron4? 15b": {"layers": 32, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 24576} | _NEMOTRON,
    r"nemotron4? 340b": {"layers": 96, "hidden": 18432, "heads": 96, "kv_heads": 8, "ffn": 73728} | _NEMOTRON,
}
_GPUS = (
    ("H200-NVL", "h200-nvl"),
    ("H200 NVL", "h200-nvl"),
    ("H100 NVL", "h100-nvl"),
    ("H100-NVL", "h100-nvl"),
    ("H100", "h100"),
    ("H200", "h200"),
    ("L40S", "l40s"),
    ("MI325X", "mi325x"),
    ("MI300X", "mi300x"),
    ("MI350X", "mi350x"),
    ("MI355X", "mi355x"),
    ("GB300", "gb300"),
    ("GB200", "gb200"),
    ("B300", "b300"),
    ("B200", "b200"),
    ("RTX PRO 6000", "rtx-pro-6000"),
    ("A100-PCIe", "a100-pcie"),
    ("A100", "a100"),
)


class Unusable(ValueError):
    """A row that says too little, contradicts itself, or is not of a decoder that layouts plan."""


def line_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as a line of `plan --rows`, with what was measured and its source.

    Raises:
        Unusable: it cannot be planned; says why.
    """
    source = str(row["id"]).partition("-")[0]
    make = {"mlperf": _of_mlperf, "dgxc": _of_dgxc, "bigscience": _of_bigscience, "simumax": _of_simumax}.get(source)
    if make is None:
        raise Unusable(f"a row of {source}")
    line = {"id": row["id"], "source": source} | make(row)
    line["measured"] = {"seconds": (row.get("measured_ms") or 0) / 1e3 or None} | line.get("measured", {})
    return line


def _ranks(row: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "virtual_stages": "vp"}
    return {
        "gpus": row["gpus"],
        **{name: row.get(short) or 1 for name, short in sizes.items()},
        "micro_batch_size": row.get("micro_batch"),
        "seq": row.get("seq"),
    }


def _gpu(name: str) -> str:
    known = next((gpu for word, gpu in _GPUS if word in name), None)
    if known is None:
        raise Unusable(f"a GPU that the catalog has not: {name}")
    return known


def _arch(model: str) -> dict[str, Any]:
    found = next((sizes for words, sizes in ARCHS.items() if re.search(words, model, re.IGNORECASE)), None)
    if found is None:
        raise Unusable(f"a model whose sizes it does not give: {model.partition('(')[0].strip()}")
    return found


def _of_mlperf(row: Mapping[str, Any]) -> dict[str, Any]:
    if not (row.get("config_known") and row.get("batch_consistent") and row.get("micro_batch")):
        raise Unusable("its configuration is not known, or does not multiply to its batch")
    lora = "lora" in str(row.get("task", "")).lower()
    line = {"framework": "mlperf", "arch": _arch(row["model"]), "gpu": _gpu(row["gpu"]), **_ranks(row)}
    line |= {"gradient_accumulation_steps": row["micro_batches"]}
    said = next(
        (word for word in ("nvfp4", "mxfp4", "fp4", "fp8", "bf16") if word in str(row.get("precision")).lower()), ""
    )
    line |= {"precision": said} if said else {}  # where a log does not say, it is the framework's
    if row.get("sequence_parallel") is not None:
        line["sequence_parallel"] = row["sequence_parallel"]
    if row.get("recompute"):
        line["checkpointing"] = row["recompute"]
    return line | ({"lora_rank": 16, "source": "mlperf, LoRA"} if lora else {"source": "mlperf, pretraining"})


def _precision(row: Mapping[str, Any]) -> str:
    said = str(row.get("precision")).lower()
    return "fp8" if "fp8" in said else "bf16-amp"


def _of_dgxc(row: Mapping[str, Any]) -> dict[str, Any]:
    if not row.get("batch_consistent") or row.get("ambiguous"):
        raise Unusable("its layout does not multiply to its batch")
    line = {"framework": "dgxc-benchmarking", "arch": _arch(row["model"]), "gpu": _gpu(row["gpu"]), **_ranks(row)}
    if row.get("layers"):
        line["arch"] = line["arch"] | {"layers": row["layers"]}
    if any(word in row["model"].lower() for word in ("lora", "sft", "maxtext", "paxml")):
        raise Unusable("fine-tuning, or another engine")
    return line | {"gradient_accumulation_steps": row["micro_batches"], "precision": _precision(row)}


def _of_bigscience(row: Mapping[str, Any]) -> dict[str, Any]:
    arch = row["arch"]
    if not (arch.get("heads") and arch.get("layers")) or row.get("oom") or not row.get("layout_consistent"):
        raise Unusable("its heads or layers are not known, or its layout does not multiply")
    sizes = {"layers": arch["layers"], "hidden": arch["hidden"], "heads": arch["heads"], "ffn": 4 * arch["hidden"]}
    line = {"framework": "bigscience", "arch": sizes | {"vocab": 250880, "gated": False, "tied": True}, "gpu": "a100"}
    line |= {**_ranks(row), "global_batch_size": row["global_batch"], "stage": "fullest"}
    line["precision"] = str(row["precision"]).partition(" ")[0]
    held = row.get("measured_mem_gb")
    return line | {
        "zero": f"zero{row['zero_stage']}",
        "measured": {"bytes of nvidia-smi": held * 1e9 if held else None},
    }


def _of_simumax(row: Mapping[str, Any]) -> dict[str, Any]:
    arch = dict(row["arch"])
    sizes = {key: arch[key] for key in ("hidden", "ffn", "heads", "vocab", "layers", "tied")} | {"gated": True}
    sizes |= {key: arch[key] for key in ("kv_heads", "head_dim") if key in arch}
    latent = arch.get("mla")
    if latent:
        sizes |= {"q_lora": latent["q_lora_rank"] or 0, "kv_lora": latent["kv_lora_rank"]}
        sizes |= {"rope_dim": latent["qk_pos_emb_head_dim"], "value_dim": latent["v_head_dim"]}
        sizes |= {"head_dim": latent["qk_head_dim"] + latent["qk_pos_emb_head_dim"]}
    if arch.get("experts"):
        sizes |= {"experts": arch["experts"], "experts_per_token": arch["topk"], "moe_ffn": arch["moe_ffn"]}
        sizes |= {"shared_experts": (arch.get("shared_ffn") or 0) // arch["moe_ffn"]}
        sizes |= {"dense_layers": arch.get("dense_layers") or 0}
    line = {"framework": "simumax", "arch": sizes | {"layer_norm": False, "bias": False, "positions": 0}}
    line |= {"gpu": _gpu(row["gpu"]), "fused_loss": "fused" in str(row.get("loss"))}
    line |= {**_ranks(row), "gradient_accumulation_steps": row["micro_batches"], "precision": "bf16-amp"}
    line |= {"zero": "zero1", "sequence_parallel": bool(row.get("sequence_parallel", True)) and row["tp"] > 1}
    if row["cp"] > 1:
        line["context_method"] = "all-to-all" if row.get("cp_comm") == "a2a" else "ring"
    held = row.get("measured_alloc_gib")
    line["measured"] = {"bytes": held * GiB if held else None}
    return line | {"source": "simumax, A100 PCIe" if "PCIe" in row["gpu"] else "simumax, B200"}


def lines_of(rows: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return the lines of rows, and how many are left out for which reason."""
    lines, left_out = [], Counter[str]()
    for row in rows:
        try:
            lines.append(line_of(row))
        except Unusable as reason:
            left_out[str(reason)] += 1
    return lines, left_out


def table(lines: Iterable[Mapping[str, Any]], answers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the errors of forecasts by source and by what was measured."""
    groups: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    fields = {"seconds": "step_seconds", "bytes": "peak_allocated_bytes", "bytes of nvidia-smi": "device_bytes"}
    for line, answer in zip(lines, answers, strict=True):
        for kind, field in fields.items():
            measured = line["measured"].get(kind)
            if measured and not answer["error"]:
                low, high = answer["step_seconds_interval"]
                groups[line["source"], kind].append((answer[field] / measured - 1, low <= measured <= high))
    result = [
        "| source | measured | runs | median error | median of signed errors | worst | in the interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for (source, kind), mine in sorted(groups.items()):
        errors = [error for error, _ in mine]
        median, sign = statistics.median(map(abs, errors)), statistics.median(errors)
        inside = f"{sum(within for _, within in mine)}" if kind == "seconds" else "-"
        worst = max(errors, key=abs)
        result.append(f"| {source} | {kind} | {len(errors)} | {median:.1%} | {sign:+.1%} | {worst:+.1%} | {inside} |")
    return result


def beyond_the_sheet(line: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    """Return whether a step is said to be faster than its GPUs' data sheet lets it be."""
    seconds = line["measured"].get("seconds")
    return bool(seconds and answer["hfu"] and answer["hfu"] * answer["step_seconds"] > seconds)


def main(*words: str) -> None:
    """Plan the rows of files and print, or write, the table."""
    rates = words[words.index("--rates") + 1] if "--rates" in words else ""
    paths = [word for word in words if word not in ("--rates", "--write", rates)]
    rows = [row for path in paths for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]]
    lines, left_out = lines_of(rows)
    answers = answer_rows(lines)
    if rates:
        again = [line for line in lines if line["source"] == "simumax, B200"]
        lines += [line | {"source": line["source"] + ", with `--rates`"} for line in again]
        answers += answer_rows(again, rates=rates)
    left_out.update(answer["error"] for answer in answers if answer["error"])
    pairs = list(zip(lines, answers, strict=True))
    likely = [pair for pair in pairs if not beyond_the_sheet(*pair)]
    left_out["a step faster than the data sheet of its GPUs"] = len(pairs) - len(likely)
    text = "\n".join(table(*zip(*likely, strict=True)))
    if "--write" in words:
        write_between(TABLE_PAGE, MARKS, text)
    print("\n".join([text, *(f"{count} left out: {why}" for why, count in left_out.most_common())]))


if __name__ == "__main__":
    main(*sys.argv[1:])
