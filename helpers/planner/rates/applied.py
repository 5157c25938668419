"""Rates of one's own machine, put in place of the forecast's: for a cluster, with words about what moved."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalog.clusters import Cluster
from ..catalog.layout_rates import LayoutRates, layout_rates
from ..catalog.rooflines import attention_rate, fitted_rates
from ..config import RecipeError
from ..layout.arch import Arch
from ..layout.chip import Chip
from ..layout.layout import Layout
from ..layout.layout_plan import plan_layout
from .check import APART
from .measured import Measured, moves
from .read import RatesFile, read_rates, speed_of, with_pace

if TYPE_CHECKING:  # it imports what this gives
    from ..rows.line import Question

_ARCH = Arch(layers=1, hidden=1, heads=1, kv_heads=1, head_dim=1, ffn=1, vocab=1)
_PLAIN = Layout(_ARCH, engine="megatron", zero="none")


def applied(path: str) -> "Applied":
    """Return the rates of a file, read once in a process unless it changes.

    Raises:
        RecipeError, OSError: see `read_rates`.
    """
    return _read_once(path, Path(path).stat().st_mtime_ns)


@cache
def _read_once(path: str, changed: int) -> "Applied":
    return Applied(read_rates(path))


class Applied:
    """The rates of a file on the clusters of the runs that are planned."""

    def __init__(self, file: RatesFile) -> None:
        self._file = file
        self._found = cache(self._read)

    def rates(self, cluster: Cluster) -> LayoutRates:
        """Return the rates of a cluster by the file.

        Raises:
            RecipeError: the file is of another GPU, or contradicts itself.
        """
        return replace(layout_rates(), measured=self._found(cluster))

    def words(self, cluster: Cluster) -> list[str]:
        """Return by how much each part of the forecast moved."""
        measured, rates = self._found(cluster), layout_rates()
        forecast = {f"matmul {dtype}": ratio for dtype, ratio in measured.moved(catalog(cluster, rates)).items()}
        gpu = cluster.gpu
        forecast |= {
            "attention": rates.attention.get(gpu.generation, 1.0) * attention_rate(gpu, "float16", fitted_rates()),
            "memory": rates.fused * fitted_rates().bandwidth * gpu.bandwidth,
            "inside": cluster.inside * rates.inside,
            "outside": cluster.outside * rates.outside,
            "launch": rates.launch,
        }
        return moves(measured, forecast)

    def _read(self, cluster: Cluster) -> Measured:
        from ..rows.line import read_line

        tables = self._file.of(cluster)
        runs = [(run, read_line(run)) for run in self._file.runs]
        mine = [(run, asked) for run, asked in runs if asked.cluster.gpu == cluster.gpu]
        if runs and not mine:
            others = ", ".join(sorted({asked.cluster.gpu.name for _, asked in runs}))
            raise RecipeError(f"No run of {self._file.name} is on {cluster.gpu.name}; they are on {others}.")
        return with_pace(tables, _pace(self._file.name, tables, mine)) if mine else tables


def catalog(cluster: Cluster, rates: LayoutRates) -> "Catalog":
    """Return what gives the forecast's FLOP/s of a matmul by its shape and dtype."""
    return Catalog(Chip(cluster.gpu, replace(rates, measured=None), _PLAIN))


class Catalog:
    """FLOP/s of a matmul by the forecast."""

    def __init__(self, chip: Chip) -> None:
        self._chip = chip

    def __call__(self, shape: tuple[int, ...], dtype: str) -> float:
        """Return the rate of one shape, alone."""
        return self._chip.catalog_rate(shape, dtype)


def _pace(name: str, tables: Measured, runs: Sequence[tuple[Mapping[str, Any], "Question"]]) -> float:
    """Return the median of measured / forecast seconds.

    Raises:
        RecipeError: the runs lie too far apart to be of one machine.
    """
    rates = replace(layout_rates(), measured=tables)
    ratios = []
    for run, asked in runs:
        measured = speed_of(run, asked.layout.tokens, asked.layout.ranks)
        ratios.append(measured / plan_layout(asked.layout, asked.cluster, rates).seconds)
    if max(ratios) > APART**2 * min(ratios):
        low, high = min(ratios), max(ratios)
        raise RecipeError(
            f"{name} contradicts itself: its runs take {low:.2f} to {high:.2f} times the forecast; one machine has one "
            "pace. Are layouts and tokens per second those of the same run?"
        )
    return statistics.median(ratios)
