"""Refuse a table that contradicts itself, or its GPU: one line says which figure, and why it cannot be."""

import math
from collections import defaultdict

from ..catalog.clusters import Cluster
from ..config import RecipeError
from .measured import Measured

APART = 1.25  # two measurements of the same lie no further apart: other clocks explain a tenth
_ABOVE = 1.05  # times the data sheet's rate: a table beyond counts otherwise, or is of another GPU
_LOST = 30  # a large matmul that reaches less than this part of its sheet was not timed alone
_LARGE = 2e11  # FLOPs


def check(measured: Measured, name: str) -> None:
    """Make sure that figures are rates, and that the same shape has one.

    Raises:
        RecipeError: they are not.
    """
    rates = [each.rate for each in (*measured.matmuls, *measured.attention)]
    rates += [each.bandwidth for each in measured.wires] + [measured.memory] * bool(measured.memory)
    if any(not math.isfinite(rate) or rate <= 0 for rate in rates):
        raise RecipeError(f"{name}: every rate must be more than 0.")
    if not rates and measured.pace == 1:
        raise RecipeError(f"{name} contains no rates: no matmul, attention, memory, collective or run.")
    same: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for each in measured.matmuls:
        same[each.groups, (each.m, each.n, each.k), each.dtype, each.which].append(each.rate)
    for (_, shape, dtype, which), mine in same.items():
        if max(mine) > APART * min(mine):
            low, high = min(mine) / 1e12, max(mine) / 1e12
            what = f"the {which or 'same'} matmul {' x '.join(map(str, shape))} in {dtype}"
            raise RecipeError(f"{name} contradicts itself: {what} has both {low:,.0f} and {high:,.0f} TFLOP/s.")


def check_against(measured: Measured, cluster: Cluster, name: str) -> None:
    """Make sure that nothing is faster than the data sheet of the GPU and of its links.

    Raises:
        RecipeError: something is, or is so slow that it was not timed alone.
    """
    gpu = cluster.gpu
    for each in measured.matmuls:
        peak = gpu.peaks.get(each.dtype)
        shape = " x ".join(map(str, (each.m, each.n, each.k)))
        if peak and each.rate > _ABOVE * peak:
            said = f"the matmul {shape} in {each.dtype} has {each.rate / 1e12:,.0f} TFLOP/s"
            raise RecipeError(f"{name}: {said}, but {gpu.name} has at most {peak / 1e12:,.0f} dense.")
        if peak and 2.0 * each.m * each.n * each.k * each.groups > _LARGE and each.rate < peak / _LOST:
            said = f"the matmul {shape} in {each.dtype} has {each.rate / 1e12:,.1f} TFLOP/s"
            raise RecipeError(f"{name}: {said}, of a peak of {peak / 1e12:,.0f}: are the units different, or the GPU?")
    for one in measured.attention:
        if gpu.flops16 and one.rate > _ABOVE * gpu.flops16:
            said = f"attention over {one.seq} tokens has {one.rate / 1e12:,.0f} TFLOP/s"
            most = f"{gpu.name} at most {gpu.flops16 / 1e12:,.0f}"
            raise RecipeError(f"{name}: {said}, but {most}; causal attention counts half.")
    if measured.memory > _ABOVE * gpu.bandwidth:
        raise RecipeError(
            f"{name}: memory moves {measured.memory / 1e9:,.0f} GB/s, but {gpu.name} has {gpu.bandwidth / 1e9:,.0f}."
        )
    for wire in measured.wires:
        sheet = cluster.outside * min(wire.ranks, cluster.node) if wire.nodes > 1 else cluster.inside
        if wire.bandwidth > 2 * sheet:  # a switch that adds up on its own passes each byte once
            said = f"{wire.collective} of {wire.ranks} ranks has {wire.bandwidth / 1e9:,.0f} GB/s on the bus"
            raise RecipeError(f"{name}: {said}, but its links have {sheet / 1e9:,.0f}.")
