"""The device of this machine, and what it can compute in."""

from helpers import pick_device, supports
from helpers.core.device import device_name

import torch


def test_device_is_one_that_can_compute():
    device = pick_device()
    assert device.type in ("cuda", "mps", "cpu")
    assert supports(torch.float32, device)
    assert not supports(torch.bool, device)
    assert device_name(device)
