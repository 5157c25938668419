"""The output of nccl-tests (https://github.com/NVIDIA/nccl-tests): what a collective takes, by its bytes."""

import re
from collections.abc import Sequence

from ...meter.roofline.link import Link
from ..config import RecipeError
from .measured import Measured, Wire

_BUS = {  # bus bandwidth over algorithm bandwidth (doc/PERFORMANCE.md of nccl-tests), by the ranks
    "all-reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all-gather": lambda ranks: (ranks - 1) / ranks,
    "reduce-scatter": lambda ranks: (ranks - 1) / ranks,
    "all-to-all": lambda ranks: (ranks - 1) / ranks,
    "send": lambda ranks: 1.0,
}
_TESTS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "sendrecv": "send",
}
_RANK = re.compile(r"^#\s+Rank\s+(\d+).* on\s+(\S+)\s+device", re.MULTILINE)
_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\S+\s+\S+\s+-?\d+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s", re.MULTILINE)
_PREFIX = re.compile(r"^(?:\[\d+,\d+\](?:<std\w+>)?: ?|\s*\d+: )", re.MULTILINE)  # of mpirun's and srun's lines
_OTHER = re.compile(r"\b(\w+)_perf\b")
_GIGA, _MICRO, _APART = 1e9, 1e-6, 0.1


def is_nccl_tests(text: str) -> bool:
    """Return whether a text is the output of a test."""
    return "busbw" in text and _RANK.search(_PREFIX.sub("", text)) is not None


def read_nccl_tests(text: str) -> Measured:
    """Return the wire that a test measured; several outputs in one file give several.

    Raises:
        RecipeError: it says too little, or contradicts itself.
    """
    text = _PREFIX.sub("", text)
    other = next((word for word in _OTHER.findall(text) if word not in _TESTS), "")
    if other:
        raise RecipeError(f"nccl-tests' {other}_perf measures what no layout sends; give one of {', '.join(_TESTS)}.")
    parts = re.split(r"(?m)^(?=# (?:nThread|Collective test starting))", text)
    wires, names, ranks, nodes = [], [], 0, 0
    for part in parts:
        names += [name for word, name in _TESTS.items() if f"{word}_perf" in part]
        found = _RANK.findall(part)
        ranks, nodes = (len({rank for rank, _ in found}), len({host for _, host in found})) if found else (ranks, nodes)
        rows = [(int(size), *map(float, rest)) for size, *rest in _ROW.findall(part)]
        if rows:
            wires.append(_wire(names[-1] if names else "", (ranks, nodes), rows))
    if not wires:
        raise RecipeError("The output of nccl-tests has no row with a size, a time and a bandwidth.")
    return Measured(wires=wires)


def _wire(name: str, where: tuple[int, int], rows: Sequence[tuple[float, ...]]) -> Wire:
    ranks, nodes = where
    if ranks < 2:
        raise RecipeError("nccl-tests ran on one rank, so it did not measure a link. Run it on all GPUs of a node.")
    large = max(rows)
    ratio = large[3] / large[2] if large[2] else 0.0
    name = name or ("all-reduce" if ratio > 1 else "all-gather")
    for size, micros, algorithm, bus in rows:
        said = size / (micros * _MICRO) / _GIGA if micros else 0.0
        if size >= 1 << 20 and abs(algorithm / said - 1) > _APART:
            raise RecipeError(
                f"nccl-tests contradicts itself: {size:,.0f} bytes in {micros:g} us are {said:.1f} GB/s, "
                f"not algbw {algorithm:g}."
            )
        expected = algorithm * _BUS[name](ranks)
        if size >= 1 << 20 and abs(bus - expected) > _APART * expected:
            raise RecipeError(
                f"nccl-tests contradicts itself: {name} of {ranks} ranks has busbw {expected:.1f} at algbw "
                f"{algorithm:g}, not {bus:g}."
            )
    link = Link.fitted([(int(size), micros * _MICRO) for size, micros, *_ in rows if size and micros])
    return Wire(name, ranks, nodes, link.latency, link.bandwidth * _BUS[name](ranks))
