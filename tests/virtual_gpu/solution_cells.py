"""Runs a lab's solution on a virtual GPU, cell by cell, dry or computed, and prints each cell's peak as JSON."""

import argparse
import gc
import json
import math
import multiprocessing.process
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SMALLER = {  # sizes for a GPU that a CPU does not compute in time
    "04_gradient_accumulation": {'256 if device.type == "cuda" else 32': "32"},
    "05_activation_checkpointing": {'(512, 4) if device.type == "cuda" else (64, 4)': "(64, 4)"},
    "05b_selective_checkpointing": {
        '(512, 4) if device.type == "cuda" else (64, 4)': "(64, 4)",
        '(2048, 1024, 4) if device.type == "cuda" else (512, 256, 1)': "(64, 128, 1)",
    },
    "07_where_the_time_goes": {  # a roofline takes minutes to measure
        "kept_roofline(device) or measure_roofline(device)": 'measure_roofline(torch.device("cpu"))',
    },
    "16_mixture_of_experts": {'(512, 1024) if device.type == "cuda" else (64, 64)': "(64, 64)"},
    "03_mixed_precision": {
        "for seed in range(3)]": "for seed in range(1)]",
        "lambda: SmallGPT(context=1024, layers=8, width=1024)": "lambda: SmallGPT(context=1024, layers=2, width=64)",
        "tokens[: 16 * 1024].view(16, 1024)": "tokens[:1024].view(1, 1024)",
        "lambda: SmallCNN(256), images.repeat(4, 1, 1, 1), labels.repeat(4)": "lambda: SmallCNN(32), images, labels",
    },
}


class WorkersError(Exception):
    """The cell starts a process, which would not have the GPU."""


def cells(path):
    """Return (name, code) of each cell of code."""
    text = path.read_text(encoding="utf-8")
    for size, smaller in SMALLER.get(path.stem, {}).items():
        assert size in text, size
        text = text.replace(size, smaller)
    parts = re.split(r"^# %%(.*)$", text, flags=re.MULTILINE)[1:]
    named = zip(parts[::2], parts[1::2], strict=True)
    return [(re.search(r'name="([^"]+)"', head)[1], code) for head, code in named if "[markdown]" not in head]


def without_workers():
    """Let work that is spread over processes stay in this one, and refuse other processes that run Python."""
    from helpers.core import parallel_map

    parallel_map.PROCESSES = 1
    popen = subprocess.Popen.__init__

    def refuse(*_, **__):
        raise WorkersError("The cell starts processes.")

    def start(self, args, *rest, **options):
        if "python" in str(args if isinstance(args, str) else args[0]):
            refuse()
        popen(self, args, *rest, **options)

    multiprocessing.process.BaseProcess.start = refuse
    subprocess.Popen.__init__ = start


def run(path, dry, seconds, until):
    """Return (name, allocated peak, allocated at the end, error or "") of each cell; none starts after `seconds`.

    The cell called `until` is the last.

    Cycles of garbage are collected between the cells: within one, they would go at other moments in a dry run.
    """
    from helpers.virtual_gpu.install import install, uninstall
    from helpers.virtual_gpu.machine import Machine
    from helpers.virtual_gpu.waits import Waits

    import torch

    without_workers()
    install(Machine.named("a100-80gb"), Waits() if dry else None)
    names, rows = {"__name__": "__main__"}, []
    for name, code in cells(path):
        if time.process_time() > seconds:
            break
        gc.enable()
        gc.collect()
        gc.disable()
        torch.cuda.reset_peak_memory_stats()
        error = ""
        try:
            exec(compile(code, f"<{name}>", "exec"), names)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"[:200]
        rows.append((name, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), error))
        if name == until:
            break
    uninstall()
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("solution", type=Path)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the processor")
    parser.add_argument("--until", default="", help="the last cell")
    given = parser.parse_args()
    os.environ["MPLBACKEND"] = "Agg"
    sys.path.insert(0, str(ROOT))
    print(json.dumps(run(given.solution, given.dry, given.seconds, given.until)))
