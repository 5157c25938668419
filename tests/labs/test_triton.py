"""The Triton kernels of the lab on fused kernels, as they are in its source, where Triton is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from helpers.course.build.source import sources

import pytest
import torch

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: make triton")

HEAD = """
import importlib.util
HAS_TRITON = True
from helpers import Prediction
import torch
import torch.nn.functional as F
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
TAIL = """
for rows, width in ((1, 1), (3, 128), (7, 200), (64, 513)):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch.manual_seed(rows)
        x, residual = (torch.randn(rows, width, device=device).to(dtype) for _ in range(2))
        weight = torch.rand(width, device=device).to(dtype)
        exact_pair = add_norm(x.double(), residual.double(), weight.double())
        for mine, exact in zip(triton_add_norm(x, residual, weight), exact_pair):
            assert mine.dtype == dtype and mine.shape == x.shape
            off = (mine.double() - exact).norm() / exact.norm()
            assert off <= torch.finfo(dtype).eps, (rows, width, dtype, off)
for length, width, tile in ((1, 16, 16), (64, 16, 16), (50, 32, 16), (200, 64, 64)):
    torch.manual_seed(length)
    q, k, v = (torch.randn(2, 3, length, width, device=device) for _ in range(3))
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    off = (triton_attention(q, k, v, tile) - exact).norm() / exact.norm()
    assert off <= 1e-5, (length, width, tile, off)
print("done")
"""


def test_the_kernels_of_the_lab_give_the_right_numbers(tmp_path):
    (source,) = (source for source in sources() if source.exercise == "fused_kernels")
    cells = {cell.metadata.get("name"): cell.source for cell in source.cells()}
    script = tmp_path / "kernels.py"  # a file: Triton reads the text of a kernel
    kernels = [cells[name] for name in ("norm", "triton_kernel", "merge", "triton_attention")]
    script.write_text("\n".join([HEAD, *kernels, TAIL]), encoding="utf-8")
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr
