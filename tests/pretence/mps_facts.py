"""What is true on a machine with Apple's GPU: a script that test_mps.py runs on a pretended one, or a Mac for real."""

from helpers import MemoryMeter, count_flops, device_name, pick_device, rank_device, saved_tensor_bytes, supports
from helpers.core.device import synchronize
from helpers.doctor import device_memory

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

MPS = torch.device("mps")


class Operations(TorchDispatchMode):
    """Remembers the names of the operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **kwargs or {})


def the_device_is_picked():
    assert pick_device() == MPS
    assert device_name(MPS).startswith("Apple")
    assert rank_device().type == "cpu"
    assert not torch.cuda.is_available()
    synchronize(MPS)
    free, total = device_memory(MPS)
    assert 0 < free <= total


def some_dtypes_are_missing():
    x = torch.ones(3, 4, device=MPS)
    with pytest.raises(TypeError, match="doesn't support float64"):
        x.double()
    with pytest.raises(TypeError, match="doesn't support float64"):
        torch.zeros(3, dtype=torch.float64, device=MPS)
    with pytest.raises(TypeError, match="Float8_e4m3fn to the MPS backend"):
        x.to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match="ComplexDouble to the MPS backend"):
        torch.zeros(3, dtype=torch.complex128).to(MPS)
    assert [supports(dtype, MPS) for dtype in (torch.float32, torch.float16)] == [True, True]
    assert not any(supports(dtype, MPS) for dtype in (torch.float64, torch.float8_e4m3fn, torch.float8_e5m2))
    assert x.cpu().double().dtype == torch.float64  # the right order


def devices_do_not_mix():
    x = torch.ones(3, device=MPS)
    with pytest.raises(RuntimeError, match="mps:0 and cpu"):
        x + torch.ones(3)
    with pytest.raises(TypeError, match=r"use Tensor.cpu\(\)|Use Tensor.cpu\(\)"):
        x.numpy()
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=MPS, generator=torch.Generator())


def a_linear_layer_is_one_operation():
    layer, x = nn.Linear(4, 3).to(MPS), torch.randn(2, 5, 4, device=MPS, requires_grad=True)
    with Operations() as seen:
        layer(x).square().sum().backward()
    assert "aten.linear.default" in seen.names
    assert "aten.linear_backward.default" in seen.names
    assert not any("mm" in name for name in seen.names)
    gradients = [t.grad.cpu() for t in (x, layer.weight, layer.bias)]
    there, leaf = nn.Linear(4, 3), x.detach().cpu().requires_grad_()
    there.load_state_dict({name: t.cpu() for name, t in layer.state_dict().items()})
    there(leaf).square().sum().backward()
    for seen, right in zip(gradients, (leaf.grad, there.weight.grad, there.bias.grad), strict=True):
        torch.testing.assert_close(seen, right)
    assert count_flops(lambda: layer(x).sum().backward()) == 3 * 2 * 10 * layer.weight.numel()


def the_meter_counts():
    layer = nn.Linear(64, 64).to(MPS)
    x = torch.ones(1000, 64, device=MPS)
    with MemoryMeter(layer) as profile:
        torch.relu(layer(x)).sum().backward()
    assert profile.method == "counted"
    assert profile.at_peak["parameters"] == sum(p.nbytes for p in layer.parameters())
    assert profile.largest["activations"] >= x.nbytes
    known = [*layer.parameters(), x]
    assert saved_tensor_bytes(lambda: torch.relu(layer(x)), known) == x.nbytes
    assert torch.mps.current_allocated_memory() >= x.nbytes


def batches_are_not_pinned():
    with pytest.warns(UserWarning, match="not supported on MPS"):
        batch = next(iter(DataLoader([1.0, 2.0], batch_size=2, pin_memory=True)))
    assert not batch.is_pinned()
    assert torch.accelerator.current_accelerator() == MPS


def autocast_and_its_scaler_work():
    layer, x = nn.Linear(4, 4).to(MPS), torch.ones(2, 4, device=MPS)
    scaler, optimizer = torch.amp.GradScaler("mps"), torch.optim.AdamW(layer.parameters())
    with torch.autocast("mps", torch.float16):
        assert layer(x).dtype == torch.float16
        loss = nn.functional.mse_loss(layer(x), x)
    assert loss.dtype == torch.float32
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


if __name__ == "__main__":
    the_device_is_picked()
    some_dtypes_are_missing()
    devices_do_not_mix()
    a_linear_layer_is_one_operation()
    the_meter_counts()
    batches_are_not_pinned()
    autocast_and_its_scaler_work()
