"""The names of CUDA's autocast lists are those that PyTorch registers."""

from helpers.virtual_gpu.autocast import DTYPE_ARGUMENT, SIXTEEN_BITS, WIDEST

import torch


def test_all_names_are_registered_and_stand_on_one_list():
    registered = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }
    assert registered >= SIXTEEN_BITS | WIDEST | DTYPE_ARGUMENT
    assert not SIXTEEN_BITS & WIDEST
    assert not DTYPE_ARGUMENT & (SIXTEEN_BITS | WIDEST)
