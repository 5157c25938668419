"""FP32 or TF32: what is set, and that it comes back."""

from helpers.core.precision import fp32_computed_as, fp32_precision, has_tf32

import pytest
import torch


@pytest.fixture(params=["highest", "high"])
def set_by_the_old_name(request):
    """A program that has chosen with the older function."""
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision("highest")


def test_matmuls_and_convolutions_differ_as_pytorch_has_them():
    assert fp32_precision() == {"matmuls": "FP32", "convolutions": "TF32"}


@pytest.mark.parametrize(("precision", "name"), [("ieee", "FP32"), ("tf32", "TF32")])
def test_one_precision_for_both_and_the_old_one_afterwards(precision, name, set_by_the_old_name):
    before = fp32_precision()
    with fp32_computed_as(precision):
        assert fp32_precision() == {"matmuls": name, "convolutions": name}
    assert fp32_precision() == before
    assert torch.get_float32_matmul_precision() == set_by_the_old_name  # raises where old and new disagree
    assert torch.backends.cudnn.allow_tf32


def test_the_old_one_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError), fp32_computed_as("tf32"):
        raise ZeroDivisionError
    assert fp32_precision() == {"matmuls": "FP32", "convolutions": "TF32"}


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_tf32_begins_with_capability_8(monkeypatch, capability, has):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_tf32(torch.device("cuda")) == has
    assert not has_tf32(torch.device("cpu"))
