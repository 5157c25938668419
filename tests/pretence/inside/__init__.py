"""Tests of what `helpers` does on an NVIDIA GPU. Without one, `test_cuda_lines.py` runs them on a pretended one."""
