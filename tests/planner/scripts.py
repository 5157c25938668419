"""Exported scripts for tests: their functions without a run, and runs of the file as a process."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.planner import Recipe
from helpers.planner.script import training_script


def functions(recipe: Recipe, style: str = "pytorch") -> dict:
    """Return what the script defines, without running it."""
    defined = {"__name__": "script", "__doc__": ""}
    exec(compile(training_script(recipe, style), "train.py", "exec"), defined)
    return defined


def command(folder: Path, recipe: Recipe, style: str, *options: object, ranks: int | None = None) -> tuple[list, dict]:
    """Write the script into `folder`; return how to call it there, with --tiny."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(training_script(recipe, style))
    ranks = ranks or recipe.ranks
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    line = [sys.executable, *launcher, "train.py", "--tiny", "--lr", "1e-3", "--evaluate-every", "1000", *options]
    return [str(word) for word in line], {"cwd": folder, "env": os.environ | settings}


def run(line: list, settings: dict) -> subprocess.CompletedProcess:
    """Run the script to its end."""
    return subprocess.run(line, capture_output=True, text=True, check=False, **settings)
