"""Dry runs compared with the same programs on a real GPU, as a table of docs/dry_run.md: `python -m` this module.

`h100.json` says how each figure was measured. `programs/` has the scripts that belong to no other repository.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from helpers.core.files import ROOT
from helpers.core.units import human_bytes
from helpers.planner.catalog.rooflines import fitted_rates

from ..planner.published import write_between

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "dry_run.md"
MARKS = "<!-- against a GPU: python -m tests.virtual_gpu.against_gpu writes this -->", "<!-- /against a GPU -->"
CLOSE, REST = 0.01, 0.03  # of the peak


def measured() -> dict[str, Any]:
    """Return what was measured."""
    return json.loads((HERE / "h100.json").read_text(encoding="utf-8"))


def peak(row: dict[str, Any]) -> int:
    """Return the highest allocated peak on the GPU in bytes, from the second step on, less cuBLAS's workspaces."""
    return max(step["peak"] - step["workspace"] for step in row["measured"][1:])


def dry_peak(row: dict[str, Any]) -> int:
    """Return the highest allocated peak of the dry run, from the second step on."""
    return max(row["dry"]["allocated"][1:])


def error(row: dict[str, Any]) -> float:
    """Return by how much the dry run is above the GPU."""
    return dry_peak(row) / peak(row) - 1


def reserved(row: dict[str, Any]) -> int:
    """Return what the GPU's allocator reserved, in bytes."""
    return max(step["reserved"] for step in row["measured"])


def tables() -> str:
    """Return the part of the page between its two marks."""
    rows = sorted(measured()["rows"], key=peak, reverse=True)
    errors = [abs(error(row)) for row in rows]
    inside = sum(low <= reserved(row) <= high for row in rows for low, high in [row["dry"]["reserved"]])
    lines = [
        f"{len(rows)} programs trained for three steps on an {measured()['gpu']} and in a dry run, with the same "
        f"made-up data. The median difference of the allocated peaks is {statistics.median(errors):.2%}; "
        f"{sum(e <= CLOSE for e in errors)} are within {CLOSE:.0%}, {sum(e <= REST for e in errors)} within "
        f"{REST:.0%}. Reserved memory lies in the forecast interval for {inside}.",
        "",
        "| program | allocated: dry | H100 | difference | reserved: dry | H100 |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["dry"]["reserved"]
        named = f"{row['program']} `{row['script']}`" if "script" in row else row["program"]
        figures = (human_bytes(dry_peak(row)), human_bytes(peak(row)), f"{error(row):+.2%}")
        between = f"{human_bytes(low)} to {human_bytes(high)}"
        lines.append(f"| {' | '.join([named, *figures, between, human_bytes(reserved(row))])} |")
    lines += [
        "",
        f"{sum('kernels' in row for row in rows)} of the programs also ran alone on the GPU. Seconds per step:",
        "",
        "| program | forecast | measured | kernels per step | GPU busy |",
        "|---|---|---|---|---|",
    ]
    low, high = fitted_rates().interval
    for row in (row for row in rows if "kernels" in row):
        between = f"{low * row['dry']['seconds']:.3f} to {high * row['dry']['seconds']:.3f}"
        busy = f"{row['gpu_seconds'] / row['seconds']:.0%}"
        lines.append(f"| {row['program']} | {between} | {row['seconds']:.3f} | {row['kernels']:,} | {busy} |")
    return "\n".join(lines)


if __name__ == "__main__":
    write_between(PAGE, MARKS, tables())
