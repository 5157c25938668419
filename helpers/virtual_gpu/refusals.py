"""What CUDA refuses, in its own words."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import memory
from .homes import Home, outlived
from .machine import Machine

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# Arguments that CUDA wants on the CPU.
_LENGTHS = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1, "tensor_split": 1}
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}


class Refusals:
    """The errors of a machine's GPUs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def check(self, func: Any, name: str, tensors: Sequence[Tensor]) -> None:
        """Raise what the GPU raises for an operation that it cannot do.

        Raises:
            RuntimeError: as the GPU does.
        """
        if name.startswith("_scaled_mm") and self._machine.capability < (8, 9):
            raise RuntimeError(
                "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, "
                "or ROCm MI300+"
            )
        if name in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv") and tensors[0].dtype in _FP8:
            dtype = str(tensors[0].dtype).removeprefix("torch.").replace("float8", "Float8")
            raise NotImplementedError(f"\"addmm_cuda\" not implemented for '{dtype}'")

    def meeting(
        self, func: Any, name: str, tensors: Sequence[Tensor], homes: Sequence[Home | None], indices: set[int]
    ) -> None:
        """Raise where tensors of several devices meet, unless CUDA lets them.

        Raises:
            RuntimeError: in CUDA's words.
        """
        if name in _INDEXING and self._may_index(name, tensors, homes):
            return
        if len(indices) == 1 and not self._strangers(func, name, tensors, homes):
            return
        here = [f"{memory.machine.kind}:{index}" for index in sorted(indices)]
        first, second = [*here, "cpu"][:2]
        earlier = (
            " One of them was on the virtual GPU of an earlier block and is now on the CPU: create the model and its "
            "optimizer inside this block."
        )
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}! "
            f"(when checking arguments of {func}){earlier if any(map(outlived, tensors)) else ''}"
        )

    def _may_index(self, name: str, tensors: Sequence[Tensor], homes: Sequence[Home | None]) -> bool:
        """Indices on the CPU may select from a tensor on the GPU, not the other way round."""
        if homes[0] is None:
            writes = name not in ("index", "_unsafe_index")
            if any(home is not None for home in (homes[1:-1] if writes else homes[1:])):
                raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
            return False
        values = -1 if name not in ("index", "_unsafe_index") else len(tensors)
        return values > 0 or homes[-1] is not None or tensors[-1].dim() == 0

    @staticmethod
    def _strangers(func: Any, name: str, tensors: Sequence[Tensor], homes: Sequence[Home | None]) -> bool:
        """Say whether a tensor of the CPU is among them that may not be: numbers may, unless they are written to."""
        writes = func._schema.is_mutable and not name.startswith("_f")
        for position, (tensor, home) in enumerate(zip(tensors, homes, strict=True)):
            if home is not None or tensor.is_meta or _LENGTHS.get(name) == position:
                continue
            if tensor.dim() > 0 or (writes and position == 0):
                return True
        return False
