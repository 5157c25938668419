"""Peaks of Megatron-LM to the byte, and the table of docs/accuracy.md: `python -m tests.planner.megatron_rows`."""

import json
from pathlib import Path

from helpers.core.files import ROOT
from helpers.planner.rows.answers import answer_rows

from .published import write_between

ROWS = json.loads(Path(__file__).with_name("megatron_rows.json").read_text(encoding="utf-8"))
PAGE = ROOT / "docs" / "accuracy.md"
MARKS = "<!-- megatron: python -m tests.planner.megatron_rows writes this -->", "<!-- /megatron -->"


def line(each: dict, planned: int) -> str:
    """Return the line of the table for a row that was planned with so many bytes."""
    row, peak = each["row"], each["peak_bytes"]
    ranks = " ".join(f"{short} {row[name]}" for short, name in zip(SHORT, NAMES, strict=True) if row.get(name, 1) > 1)
    size = f"{row['arch']['layers']} layers of {row['arch']['hidden']:,}"
    figures = f"{planned / 1e9:.3f} | {peak / 1e9:.3f} | {planned / peak - 1:+.1%}"
    return f"| [{row['id']}]({each['source']}) | {row['gpu']} x {row['gpus']} | {size} | {ranks} | {figures} |"


SHORT = ("TP", "PP", "VP", "CP", "EP")
NAMES = ("tensor", "pipeline", "virtual_stages", "context", "expert")


def main() -> None:
    """Plan every row and write the table."""
    found = answer_rows([each["row"] for each in ROWS])
    lines = ["| run | GPUs | model | ranks | planned GB | allocated GB | error |", "|---|---|---|---|---|---|---|"]
    lines += [line(each, plan["peak_allocated_bytes"]) for each, plan in zip(ROWS, found, strict=True)]
    write_between(PAGE, MARKS, "\n".join(lines))


if __name__ == "__main__":
    main()
