"""What each code on a lab's card stands for, and which labs have it."""

import re

from ..receipts.quoted_claims import QUOTED_CLAIMS
from .card import card
from .source import Source, sources

TECHNIQUES = {
    "T1": "Why scale hurts: the weights of large models compared with the memory of GPUs",
    "T2": "The categories of GPU memory: parameters, gradients, optimizer state, activations and the rest",
    "T3": "FP32, FP16, BF16 and two FP8 formats: sign, exponent, fraction, range, and which format suits which tensor",
    "T4": "Mixed precision with autocast: which operation runs in which type",
    "T5": "Loss scaling by hand, then dynamic, then `GradScaler`",
    "T6": "BF16 without a scaler, and where its 8-bit significand hurts",
    "T7": "Gradient clipping with a scaler, and with data parallelism",
    "T8": "Gradient accumulation and the effective batch",
    "T9": "Activation checkpointing: every block, some blocks, attention only, selective policies",
    "T10": "Reentrant and non-reentrant checkpointing",
    "T11": "Data loading: workers, pinned memory, prefetching, and how to tell that the loader is the limit",
    "T12": "In-place operations: what they save, and when autograd forbids them",
    "T13": "Lean optimizers: SGD, Muon, Adafactor, 8-bit Adam, fused and foreach, the step inside the backward pass",
    "T14": "Memory profiling: counters, snapshots, and a profile of each stage",
    "T15": "The OOM clinic: read the error, find the peak and its owner, choose the remedy",
    "T16": "TorchScript, which is deprecated, and what replaced it",
    "T17": "Kernel fusion: eager, compiled and hand-written kernels",
    "T18": "`DataParallel`, `DistributedDataParallel`, samplers and `torchrun`",
    "T19": "Pipeline parallelism: stages, the bubble, schedules of micro-batches",
    "T20": "Tensor parallelism: column- and row-parallel layers by hand, then PyTorch's own",
    "T21": "FSDP: wrapping, precision policies, offloading",
    "T22": "DeepSpeed: ZeRO stages 1 to 3, offloading, its configuration",
    "T23": "More than one machine: launching, checkpoints, resuming on a different number of ranks",
    "T24": "FP8 training: formats, scaling recipes, and the libraries that do it",
    "T25": "Fine-tuning 7B within 24 GB, step by step",
    "T26": "Recipes by memory size, each tried with the planner",
    "T27": "The summary table: what each technique saves and costs, measured",
    "T28": "What comes next: transfer learning, feature extraction, adapters",
    "T29": "Where time goes: rooflines, FLOPs of a step, MFU and HFU, honest timing",
    "T30": "Reading a profiler trace",
    "T31": "Online softmax and tiled attention by hand",
    "T32": "Saved-tensor hooks, and memory budgets under a compiler",
    "T33": "Token data: memory maps, packing, document masks, shares of ranks and workers, resuming within an epoch",
    "T34": "What a collective costs, buckets that overlap, stragglers, the flight recorder",
    "T35": "Meshes: HSDP, two and three dimensions, starting on the meta device",
    "T36": "Sequence parallelism, and a loss whose vocabulary is split across ranks",
    "T37": "Interleaved and zero-bubble pipelines",
    "T38": "Context parallelism: ring attention, zigzag sharding, all-to-all",
    "T39": "Mixtures of experts: routing, load balancing, expert parallelism",
    "T40": "Choosing a layout, and the cost of a whole run",
    "T41": "Runs that survive: goodput, checkpoint intervals, silent errors, loss spikes",
    "T42": "A real fine-tune: chat template, loss on answers only, scores before and after",
    "T43": "Large batches: critical batch size, learning rate, and when accumulation gains nothing",
}
PITFALLS = {
    "P1": "Small updates that are lost when a 16-bit weight is rounded",
    "P2": "FP16 gradients that become zero",
    "P3": "Autocast around the backward pass, clipping scaled gradients, names that PyTorch has removed",
    "P4": "Accumulation: the undivided loss, an uneven last micro-batch, token weights, BatchNorm, the scheduler",
    "P5": "Checkpointing: random state, inputs without gradients, a checkpointed loss head",
    "P6": "Spawned workers: slow starts, objects that cannot be pickled, too many workers",
    "P7": "Data parallelism: a forgotten `set_epoch`, unequal weights and batches, saving from every rank, hangs",
}


def code_tables() -> str:
    """Return the tables of techniques, pitfalls and claims, each code with links to its labs."""
    labs = _labs_by_code()
    claims = {code: claim.words for code, claim in QUOTED_CLAIMS.items()}
    parts = []
    for heading, codes in (("Techniques", TECHNIQUES), ("Pitfalls", PITFALLS), ("Claims", claims)):
        lines = [f"## {heading}", "", "| Code | What | Labs |", "|---|---|---|"]
        lines += [f"| {code} | {what} | {_links(labs.get(code, []))} |" for code, what in codes.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _labs_by_code() -> dict[str, list[Source]]:
    found: dict[str, list[Source]] = {}
    for source in sources():
        for code in re.findall(r"[TPC]\d+", card(source)["Syllabus"]):
            found.setdefault(code, []).append(source)
    return found


def _links(labs: list[Source]) -> str:
    return " · ".join(f"[{card(lab)['title'].partition(' · ')[0]}](../labs/{lab.name}.ipynb)" for lab in labs)
