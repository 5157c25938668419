"""Tensors grouped by device, as optimizers and gradient clipping ask for: C++ does it and knows no virtual GPU."""

from typing import Any

import torch

from .patches import Patches


def install(patches: Patches) -> None:
    """Put the right devices on the groups."""
    base = torch._C._group_tensors_by_device_and_dtype

    def grouped(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
        groups: dict[Any, Any] = {}
        for (_, dtype), (parts, indices) in base(lists, with_indices).items():
            for row, tensor in enumerate(parts[0]):
                group = groups.setdefault((tensor.device, dtype), ([[] for _ in parts], []))
                for into, part in zip(group[0], parts, strict=True):
                    into.extend(part[row : row + 1])
                group[1].extend(indices[row : row + 1])
        return groups

    patches.put(torch._C, "_group_tensors_by_device_and_dtype", grouped)
