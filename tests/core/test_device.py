"""The device of this machine, and what it can compute in."""

from types import SimpleNamespace

from helpers import numbers_beyond_cache, pick_device, supports
from helpers.core.device import device_name

import pytest
import torch


def test_device_is_one_that_can_compute():
    device = pick_device()
    assert device.type in ("cuda", "mps", "cpu")
    assert supports(torch.float32, device)
    assert not supports(torch.bool, device)
    assert device_name(device)


@pytest.mark.parametrize(("l2_mib", "tensor_mib"), [(4, 32), (50, 512), (72, 1024), (128, 1024)])
def test_tensors_are_eight_times_the_cache_of_a_gpu(monkeypatch, l2_mib, tensor_mib):
    gpu = SimpleNamespace(L2_cache_size=l2_mib * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    assert 4 * numbers_beyond_cache(torch.device("cuda")) == tensor_mib * 2**20
    assert 4 * numbers_beyond_cache(torch.device("cpu")) == 32 * 2**20
