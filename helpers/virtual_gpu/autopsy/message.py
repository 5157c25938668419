"""PyTorch's out-of-memory messages, in the wordings that it has had since 1.8."""

import re
from dataclasses import dataclass

_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_SIZE = r"(\d+(?:\.\d+)?) (bytes|B|[KMG]i?B)"
_PATTERNS = {
    "asked": [rf"Tried to allocate {_SIZE}"],
    "total": [rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity", rf"max allowed: {_SIZE}"],
    "free": [rf"of which {_SIZE} is free", rf"already allocated; {_SIZE} free"],
    "process": [rf"this process has {_SIZE} memory in use"],
    "allocated": [rf"{_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated", rf"MPS allocated: {_SIZE}"],
    "unused": [rf"{_SIZE} is reserved by PyTorch but unallocated"],
    "reserved": [rf"{_SIZE} reserved in total by PyTorch"],
    "limit": [rf"{_SIZE} allowed"],
}
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclass(frozen=True)
class Message:
    """The figures of a message, in bytes; None where it does not give them.

    Attributes:
        gpu: its number.
        asked: what did not fit.
        total, free: of the GPU.
        process: what this process had of it, CUDA's context included.
        allocated: by tensors of this process.
        unused: reserved by PyTorch and not allocated.
        frames: of the traceback around it, (file, line, function), outermost first.
    """

    gpu: int
    asked: int
    total: int | None
    free: int | None
    process: int | None
    allocated: int | None
    unused: int | None
    frames: tuple[tuple[str, int, str], ...]

    @property
    def others(self) -> int | None:
        """Bytes that other processes have on the GPU."""
        if self.total is None or self.free is None or self.process is None:
            return None
        return max(0, self.total - self.free - self.process)


def read_message(text: str) -> Message | None:
    """Return the last out-of-memory message in `text`; None where there is none."""
    starts = [found.start() for found in re.finditer(r"(?:CUDA|HIP|MPS backend) out of memory", text)]
    if not starts:
        return None
    after = " ".join(text[starts[-1] :].split())
    found = {name: _first(patterns, after) for name, patterns in _PATTERNS.items()}
    if found["asked"] is None:
        return None
    unused, allocated = found["unused"], found["allocated"]
    if unused is None and found["reserved"] is not None and allocated is not None:
        unused = found["reserved"] - allocated
    gpu = re.search(r"GPU (\d+)", after)
    frames = tuple((file, int(line), name) for file, line, name in _FRAME.findall(text[: starts[-1]]))
    return Message(
        int(gpu[1]) if gpu else 0,
        found["asked"],
        found["total"],
        found["free"],
        found["process"],
        allocated,
        unused,
        frames,
    )


def _first(patterns: list[str], text: str) -> int | None:
    for pattern in patterns:
        if found := re.search(pattern, text):
            return round(float(found[1]) * _UNITS[found[2]])
    return None
