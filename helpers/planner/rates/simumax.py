"""SimuMax's tables of measured kernels, read as they are: https://github.com/MooreThreads/SimuMax (configs/system).

Two shapes of file: a list of rows with `system`, `op`, `shape` and `tflops`, or the system's own JSON with
`accelerator.op.*.accurate_efficient_factor`. SimuMax counts attention by its full square, with two matmuls forward and
four backward; here causal attention counts by half, with two forward and five backward, three of them as wide as keys
(its simumax/core/transformer/dense_module.py). Its links have a latency for each step of a ring; bytes/s of links and
of memory are in GiB (config.py).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.units import GiB
from .measured import FORWARD, OF_INPUT, OF_WEIGHT, Attention, Matmul, Measured, Wire

_PASSES = {"TN": FORWARD, "NN": OF_INPUT, "NT": OF_WEIGHT}
_STAGES = {"fwd": FORWARD, "bwd_grad_act": OF_INPUT, "bwd_grad_w": OF_WEIGHT}
_COLLECTIVES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all2all": "all-to-all",
    "p2p": "send",
}
_MICRO, _TERA = 1e-6, 1e12
_STEPS = {"all-reduce": lambda ranks: 2 * (ranks - 1), "send": lambda ranks: 1}


def systems(value: Any) -> dict[str, Measured]:
    """Return the tables of each system in a file; {} where it is not SimuMax's."""
    rows = value.get("rows") if isinstance(value, Mapping) else None
    if isinstance(value, Mapping) and isinstance(value.get("accelerator"), Mapping):
        rows = list(_rows_of(value))
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) and "system" in row for row in rows):
        return {}
    names = dict.fromkeys(str(row["system"]) for row in rows)
    return {name: _measured([row for row in rows if row["system"] == name]) for name in names}


def _rows_of(system: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a system's own JSON."""
    chip = system["accelerator"]
    name = str(system.get("sys_name"))
    for op, table in chip["op"].items():
        for shape, share in (table.get("accurate_efficient_factor") or {}).items():
            yield {"system": name, "op": op, "shape": shape, "tflops": share * table["tflops"]}
    yield {"system": name, "bandwidth": chip.get("bandwidth"), "networks": system.get("networks")}


def _measured(rows: Sequence[Mapping[str, Any]]) -> Measured:
    matmuls, attention, wires, memory, kernel = [], [], [], 0.0, 0.0
    for row in rows:
        if row.get("op") == "matmul":
            matmuls.append(_matmul(_words(row["shape"]), row["tflops"] * _TERA))
        elif row.get("op") == "group_matmul":
            matmuls.append(_grouped(_words(row["shape"]), row["tflops"] * _TERA))
        elif row.get("op") in ("sdp_fwd", "sdp_bwd"):
            attention.append(_attention(_words(row["shape"]), row["tflops"] * _TERA, row["op"]))
        elif row.get("bandwidth"):
            usual = row["bandwidth"]["default"]
            memory, kernel = usual["efficient_factor"] * usual["gbps"] * GiB, usual["latency_us"] * _MICRO
            wires = list(_wires(row.get("networks") or {}))
    narrow = [each for each in matmuls if each is not None]
    return Measured(narrow, attention, wires, memory, kernel)


def _words(shape: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=([\w.]+)", shape))


def _matmul(said: Mapping[str, str], rate: float) -> Matmul | None:
    """Return a row of the table; one that adds into 16 bits is not what a trainer with FP32 gradients runs."""
    if said.get("accumulate") == "True" and said.get("out_dtype") != "fp32":
        return None
    return Matmul(*(int(said[side]) for side in "mnk"), rate, "bfloat16", _PASSES[said["layout"]])


def _grouped(said: Mapping[str, str], rate: float) -> Matmul | None:
    if said.get("main_grad_dtype") != "fp32":
        return None
    which, tokens, wide, deep = _STAGES[said["stage"]], *(int(said[side]) for side in "MNK")
    sides = {FORWARD: (tokens, wide, deep), OF_INPUT: (tokens, deep, wide), OF_WEIGHT: (deep, wide, tokens)}[which]
    return Matmul(*sides, rate, "bfloat16", which, int(said["ng"]))


def _attention(said: Mapping[str, str], rate: float, op: str) -> Attention:
    sequences = int(said["batch"]) * int(said["head_num"])
    which = "forward" if op == "sdp_fwd" else "backward"
    keys, values = int(said["qk_head_dim"]), int(said["v_head_dim"])
    # FLOPs here for one there.
    counted = 0.5 if which == "forward" else 0.25 * (3 * keys + 2 * values) / (keys + values)
    return Attention(sequences, int(said["seq_len"]), keys, rate * counted, which)


def _wires(networks: Mapping[str, Any]) -> Iterator[Wire]:
    """Yield the collectives of the nodes' own links, of as many ranks as their names say, else of a node's eight."""
    for name, net in networks.items():
        if not isinstance(net, Mapping) or "intra" not in name or name.startswith("low"):
            continue
        found, link = re.search(r"_(\d+)x$", name), net["bandwidth"]
        for op, said in net["op"].items():
            kind = _COLLECTIVES[op]
            share = said.get("efficient_factor") or link["efficient_factor"]
            step = said.get("latency_us") or link["latency_us"]
            for ranks in [int(found[1])] if found else (2, 4, 8):
                latency = step * _STEPS.get(kind, lambda ranks: ranks - 1)(ranks) + said.get("fixed_latency_us", 0.0)
                yield Wire(kind, ranks, 1, latency * _MICRO, share * link["gbps"] * GiB)
            for ranks, rate in (said.get("dp_fixed_bw") or {}).items():  # of data ranks, with tensor ranks between them
                yield Wire(kind, int(ranks), 1, 0.0, rate * GiB, apart=True)
