"""What an autopsy found, in words and as plain data: the cause first, then who held the memory, then what to change."""

from dataclasses import dataclass, field
from typing import Any

from ...core.units import human_bytes
from ..cures import Cure, cures_at
from ..owners import Owners
from .frames import user_line
from .growth import Growth, growth_of
from .message import Message
from .snapshot import GpuSnapshot

_ROWS = 8
_NOTABLE = 2**28  # bytes of other processes from which they are named
_AGAINST_LEAKS = (
    "Keep numbers (`.item()`) or `.detach()`ed tensors instead, and look for lists, caches and hooks that hold tensors."
)
_EXPANDABLE = "Set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before PyTorch 2.9)."


@dataclass
class Report:
    """One GPU's autopsy.

    Attributes:
        title: which GPU, and what was found on it.
        causes: why the memory ran out, or is nearly out; the plainest first.
        categories, lines: bytes by what they are for, and by line of the program.
        growing: what holds more after each step.
        cures: what to change, the easiest first.
        figures: bytes by name, as far as they are known.
    """

    title: str
    causes: list[str] = field(default_factory=list)
    categories: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    growing: list[Growth] = field(default_factory=list)
    cures: list[Cure] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dictionaries and numbers."""
        return {
            "title": self.title,
            "causes": self.causes,
            "figures": self.figures,
            "categories": self.categories,
            "lines": self.lines,
            "growing": [vars(growth) for growth in self.growing],
            "cures": [{"change": cure.change, "saves": cure.saves, "up_to": cure.up_to} for cure in self.cures],
        }

    def __str__(self) -> str:
        parts = [self.title]
        parts += [f"  {human_bytes(nbytes):>12}  {name}" for name, nbytes in self.figures.items()]
        parts += [
            "",
            "What happened",
            *(f"  {cause}" for cause in self.causes or ["The GPU did not run out of memory."]),
        ]
        for title, rows in (("What holds the memory", self.categories), ("By line", self.lines)):
            if rows:
                parts += [
                    "",
                    title,
                    *(f"  {human_bytes(size):>12}  {name}" for name, size in list(rows.items())[:_ROWS]),
                ]
                rest = sum(list(rows.values())[_ROWS:])
                parts += [f"  {human_bytes(rest):>12}  all others"] if rest else []
        if self.growing:
            parts += ["", "What grows"]
            for growth in self.growing[:_ROWS]:
                rise = f"{human_bytes(growth.a_step)} per step, " if growth.a_step else ""
                held = f"{human_bytes(growth.in_all)} in {growth.blocks} blocks"
                parts.append(f"  {growth.line}: {rise}{held}")
        if self.cures:
            parts += ["", "What to change, easiest first:", *(f"  {cure}" for cure in self.cures)]
        return "\n".join(parts)


def of_snapshot(number: int, gpu: GpuSnapshot) -> Report:
    """Return the autopsy of one GPU of a snapshot."""
    categories, lines = gpu.held()
    report = Report(f"GPU {number}: {len(gpu.alive):,} blocks in {len(gpu.segments):,} segments")
    report.categories, report.lines = dict(categories.most_common()), dict(lines.most_common())
    report.growing = growth_of(gpu)
    unused = gpu.reserved - gpu.allocated
    report.figures = {"allocated": gpu.allocated, "reserved": gpu.reserved, "largest free piece": gpu.largest_gap}
    if gpu.refused is not None:
        asked, free, frames = gpu.refused
        report.figures |= {"requested when it failed": asked, "free on the GPU at that moment": free}
        report.causes.append(
            f"{user_line(frames)} asked for {human_bytes(asked)}, but only {human_bytes(free)} was free."
        )
        if unused >= asked > gpu.largest_gap and not gpu.expandable:
            report.causes.append(
                f"Fragmentation: {human_bytes(unused)} is unused in PyTorch's segments, but the largest free piece is "
                f"{human_bytes(gpu.largest_gap)}. {_EXPANDABLE}"
            )
    elif unused > max(2**28, gpu.allocated // 4) and not gpu.expandable:
        report.causes.append(f"{human_bytes(unused)} is reserved but unused. {_EXPANDABLE}")
    for growth in report.growing[:1]:
        if growth.a_step:
            found = f"A leak: memory allocated at {growth.line} is not freed and grows by "
            report.causes.append(f"{found}{human_bytes(growth.a_step)} with each step. {_AGAINST_LEAKS}")
        else:
            report.causes.append(
                f"Memory allocated at {growth.line} is not freed, from the beginning of the trace to its end. If the "
                "trace has a single forward pass, these are its activations. If it has several steps, they leak. "
                + _AGAINST_LEAKS
            )
    held = Owners(gpu.allocated, categories=dict(categories))
    report.cures = cures_at(held, 0 if gpu.expandable else max(0, unused), gpu.checkpoints)
    return report


def of_message(message: Message) -> Report:
    """Return the autopsy of an out-of-memory message."""
    report = Report(f"GPU {message.gpu}: {human_bytes(message.asked)} did not fit")
    known = {
        "requested": message.asked,
        "the GPU's memory": message.total,
        "free": message.free,
        "this process": message.process,
        "allocated by tensors": message.allocated,
        "reserved but unused": message.unused,
        "other processes": message.others,
    }
    report.figures = {name: nbytes for name, nbytes in known.items() if nbytes is not None}
    frames = [{"filename": file, "line": line, "name": name} for file, line, name in reversed(message.frames)]
    if frames:
        report.causes.append(f"The request came from {user_line(frames)}, in {frames[0]['name']}.")
    report.causes += _causes(message)
    optimizing = any("torch/optim" in file.replace("\\", "/") for file, _, _ in message.frames)
    backward = any("autograd" in file for file, _, _ in message.frames)
    if optimizing:
        report.causes.append("It failed in the optimizer's step. The first step allocates Adam's two moments.")
    elif backward:
        report.causes.append("It failed in the backward pass, which holds saved activations and gradients together.")
    report.causes.append(
        "A message does not show what holds the memory. A snapshot does: call torch.cuda.memory's "
        "_record_memory_history() at the start, and _dump_snapshot() when the program fails."
    )
    return report


def _causes(message: Message) -> list[str]:
    causes = []
    if message.total is not None and message.asked > message.total:
        causes.append("One tensor is larger than the whole GPU: look at its shape before anything else.")
    if (message.others or 0) > _NOTABLE:
        causes.append(f"Other processes hold {human_bytes(message.others or 0)} of this GPU: end them (nvidia-smi).")
    if message.unused is not None and message.unused >= message.asked:
        causes.append(f"Fragmentation: PyTorch's segments have more unused memory than was requested. {_EXPANDABLE}")
    elif message.allocated is not None and message.total and message.allocated > 0.8 * message.total:
        causes.append(
            "The tensors of this process fill the GPU. Try half the batch with twice the gradient accumulation, then "
            "activation checkpointing, then leaner optimizer state."
        )
    return causes
