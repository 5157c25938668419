"""Runs a lab's solution on a virtual GPU, cell by cell, dry or computed, and prints each cell's peak as JSON."""

import argparse
import gc
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def cells(path):
    """Return (name, code) of each cell of code."""
    parts = re.split(r"^# %%(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    named = zip(parts[::2], parts[1::2], strict=True)
    return [(re.search(r'name="([^"]+)"', head)[1], code) for head, code in named if "[markdown]" not in head]


def run(path, dry):
    """Return (name, allocated peak, allocated at the end, error or "") of each cell."""
    from helpers.virtual_gpu.install import install, uninstall
    from helpers.virtual_gpu.machine import Machine
    from helpers.virtual_gpu.waits import Waits

    import torch

    install(Machine.named("a100-80gb"), Waits() if dry else None)
    names, rows = {"__name__": "__main__"}, []
    for name, code in cells(path):
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        error = ""
        try:
            exec(compile(code, f"<{name}>", "exec"), names)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"[:200]
        rows.append((name, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), error))
    uninstall()
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("solution", type=Path)
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    os.environ["MPLBACKEND"] = "Agg"
    sys.path.insert(0, str(ROOT))
    print(json.dumps(run(given.solution, given.dry)))
