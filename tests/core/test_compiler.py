"""What torch.compile lacks on a machine, and the kernels that it writes."""

from importlib.util import find_spec

from helpers import pick_device, why_no_compiler, written_kernels

import pytest
import torch


def test_what_the_compiler_misses_is_said(monkeypatch):
    monkeypatch.setattr("helpers.core.compiler.shutil.which", lambda name: None)
    for kind, word in (("cpu", "g++"), ("cuda", "iton" if find_spec("triton") is None else "gcc")):
        monkeypatch.setattr("helpers.core.compiler.pick_device", lambda kind=kind: torch.device(kind))
        assert word in why_no_compiler()
    monkeypatch.setattr("helpers.core.compiler.pick_device", lambda: torch.device("cpu"))
    monkeypatch.setattr("helpers.core.compiler.shutil.which", lambda name: name)
    assert why_no_compiler() is None


@pytest.mark.slow
@pytest.mark.skipif(why_no_compiler() is not None, reason=f"torch.compile makes no kernels: {why_no_compiler()}")
def test_written_kernels_are_shown():
    kernels = written_kernels(lambda x: torch.relu(x * 2 + 1), torch.randn(4096, device=pick_device()))
    assert len(kernels) == 1
    assert kernels[0].count("load") == kernels[0].count("store") == 1
