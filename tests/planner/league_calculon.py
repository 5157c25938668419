"""Calculon's forecasts of the published runs that it can describe.

`python -m tests.planner.league_calculon FOLDER` runs it (a clone of calculon-ai/calculon, Apache-2.0) and keeps what it
forecasts in calculon_forecasts.json, which `tests.planner.league` reads. It takes dense models with as many heads for
keys as for queries, tensor, pipeline and data ranks, and ZeRO-1. Its settings are those of its own validation, where a
run does not say otherwise; it gets the bandwidth between nodes that our planner gets, and memory without end, because
all of these runs did fit. Two settings stand for what it does not know: a perceptron with a gate is one without, half
as wide again; and fused attention, which computes its scores twice, is attention that is recomputed.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers.planner.layout.layout import Layout
from helpers.planner.rows.line import Question, read_line

from tests.planner import megatron_rows
from tests.planner.layout_runs import RUNS

FORECASTS = Path(__file__).with_name("calculon_forecasts.json")
SYSTEMS = {"a100": "a100_80g", "h100": "h100_80g_nvl8"}  # the GPUs whose speeds calculon comes with
SOURCES = ("calculon", "vtrain", "internevo", "megatron-lm")  # with dense models, and at most ZeRO-1


def takes(layout: Layout) -> bool:
    """Return whether calculon can describe a layout."""
    arch = layout.arch
    plain = not (arch.experts or layout.lora_rank) and arch.kv_heads == arch.heads and layout.precision != "fp8"
    return plain and layout.context == 1 and layout.zero in ("none", "zero1")


def application(layout: Layout) -> dict[str, int]:
    """Return the model as calculon reads one."""
    arch = layout.arch
    width = arch.ffn * 3 // 2 if arch.gated else arch.ffn
    sizes = {"hidden": arch.hidden, "feedforward": width, "seq_size": layout.seq, "attn_heads": arch.heads}
    return sizes | {"attn_size": arch.head_dim, "num_blocks": arch.layers}


def execution(layout: Layout, node: int) -> dict[str, Any]:
    """Return how ranks share the work, as calculon reads it; network 0 is that of a node of so many GPUs.

    Between nodes, one rank has network 1, and the data ranks of a node together have network 2.
    """
    scattered = layout.sequence_parallel and layout.tensor > 1
    recompute = {"full": "full", "selective": "attn_only"}.get(layout.recompute)
    recompute = recompute or ("none" if layout.attention == "eager" else "attn_only")
    return {
        "num_procs": layout.ranks,
        "tensor_par": layout.tensor,
        "pipeline_par": layout.pipeline,
        "data_par": layout.data,
        "tensor_par_net": 0,
        "pipeline_par_net": int(layout.ranks > node),
        "data_par_net": 2 if layout.tensor * layout.data > node else 0,
        "batch_size": layout.micro_batch_size * layout.micro_batches * layout.data,
        "microbatch_size": layout.micro_batch_size,
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead",
        "activation_recompute": recompute,
        "pipeline_interleaving": layout.virtual_stages if layout.pipeline > 1 else 1,
        "optimizer_sharding": layout.zero == "zero1" and layout.data > 1,
        "tensor_par_comm_type": "rs_ag" if scattered else "ar",
        "tensor_par_overlap": "ring" if layout.tensor_overlap and layout.tensor > 1 else "none",
        "seq_par_ag_redo": scattered and recompute != "full",
        "data_par_overlap": layout.data_overlap and layout.data > 1,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def system(folder: Path, question: Question) -> tuple[dict[str, Any], bool]:
    """Return the machine as calculon reads one, and whether it comes with the speeds of the run's GPU."""
    kind = question.cluster.gpu.name.partition("-")[0]
    path = folder / "systems" / f"{SYSTEMS.get(kind, SYSTEMS['h100'])}.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    known["mem1"]["GiB"] = 1e6
    inside, outside = known["networks"]
    outside["bandwidth"] = question.cluster.outside / 1e9
    together = max(1, question.cluster.node // question.layout.tensor)
    known["networks"].append({**outside, "bandwidth": min(inside["bandwidth"], together * outside["bandwidth"])})
    return known, kind in SYSTEMS


def forecast(folder: Path, question: Question) -> dict[str, float] | None:
    """Return the seconds and bytes that calculon has for a run; None where it refuses, and no seconds of other GPUs."""
    from calculon.llm import Llm
    from calculon.system import System

    if not takes(question.layout):
        return None
    speeds, known = system(folder, question)
    try:
        model = Llm(Llm.Application(application(question.layout)), logging.getLogger())
        machine = System(speeds)
        model.compile(machine, Llm.Execution.from_json(execution(question.layout, question.cluster.node)))
        model.run(machine)
    except (Llm.Error, AssertionError) as error:  # what it refuses, it asserts
        print("refused:", error)
        return None
    found = model.get_stats_json(False)
    said = {"bytes": round(found["proc_mem_tier1_cap_req"])}
    return said | ({"seconds": float(f"{found['total_time']:.5g}")} if known else {})


def rows() -> list[dict[str, Any]]:
    """Return the lines of the runs whose seconds, or bytes, are compared."""
    lines = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    timed = [line for line in lines if line["id"].rpartition("-")[0] in SOURCES]
    return timed + [each["row"] for each in megatron_rows.ROWS]


def main(folder: Path) -> None:
    """Run calculon on every row and keep what it forecasts."""
    sys.path.insert(0, str(folder))
    sys.modules.setdefault("pandas", ModuleType("pandas"))  # only its search over all layouts calls it
    found = {row["id"]: forecast(folder, read_line(row)) for row in rows()}
    commit = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    told = {
        "about": "What calculon forecasts of published runs: python -m tests.planner.league_calculon FOLDER writes it.",
        "source": f"https://github.com/calculon-ai/calculon/tree/{commit.stdout.strip()}",
        "runs": {name: said for name, said in found.items() if said},
    }
    FORECASTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
