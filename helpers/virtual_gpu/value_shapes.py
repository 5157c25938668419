"""Operations whose answer, or its shape, is a matter of values: a number, the places that are not zero, a selection."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import stand_ins
from .hollow import give_hint, hint, hollow_tensor, is_hollow
from .user_line import place

aten = torch.ops.aten


def reads_values(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Say whether an operation needs values to know its answer or the shape of it."""
    if name in ("index", "index_put_", "index_put", "_unsafe_index"):
        return name == "index" and any(_is_mask(index) for index in args[1])
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in _STAND_INS


def stand_in(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, str]:
    """Return what stands in for the answer, and what it assumes, in words; "" where its shape is known."""
    return _STAND_INS[name](*args, **kwargs)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _number(tensor: Tensor) -> tuple[Any, str]:
    value = stand_ins.decided(tensor, place().line)
    return value, stand_ins.in_words(value)


def _truth(tensor: Tensor) -> tuple[bool, str]:
    value = bool(stand_ins.decided(tensor, place().line))
    return value, str(value)


def _equal(first: Tensor, second: Tensor) -> tuple[bool, str]:
    return first.shape == second.shape, "equal where the shapes are"


def _allclose(first: Tensor, second: Tensor, *_: Any, **__: Any) -> tuple[bool, str]:
    return True, "close to each other"


def _packed(values: Tensor, lengths: Tensor, batch_first: bool) -> tuple[tuple[Tensor, Tensor], str]:
    """Pack padded sequences: their rows, and how many sequences are at least so long. `lengths` are on the CPU."""
    if batch_first:
        values = values.transpose(0, 1)
    sizes = (lengths[None, :] > torch.arange(int(lengths[0]))[:, None]).sum(1)
    shape = (int(lengths.sum()), *values.shape[2:])
    return (hollow_tensor(shape, torch.empty(shape, device="meta").stride(), values.dtype), sizes), ""


def _nonzero(mask: Tensor) -> tuple[Tensor, str]:
    return stand_ins.places(mask), f"{stand_ins.selected(mask):,} of {mask.numel():,} places"


def _masked_select(values: Tensor, mask: Tensor) -> tuple[Tensor, str]:
    shape = torch.broadcast_shapes(values.shape, mask.shape)
    total = torch.Size(shape).numel()
    count = round(stand_ins.selected(mask) * total / max(1, mask.numel()))
    words = f"{count:,} of {total:,} elements" if is_hollow(mask) else ""
    return hollow_tensor((count,), (1,), values.dtype), words


def _index(values: Tensor, indices: list[Tensor | None]) -> tuple[Tensor, str]:
    """Select by masks: each stands for as many lists of places as it has dimensions."""
    plain: list[Tensor | None] = []
    words = []
    for index in indices:
        if not _is_mask(index):
            plain.append(index)
            continue
        count = stand_ins.selected(index)
        words += [f"{count:,} of {index.numel():,} places"] if is_hollow(index) else []
        plain += [torch.empty(count, dtype=torch.int64, device="meta") for _ in range(index.dim())]
    meta = [index if index is None else index.to("meta") if index.is_meta else _like(index) for index in plain]
    result = aten.index.Tensor(_like(values), meta)
    return hollow_tensor(result.shape, result.stride(), values.dtype), ", ".join(words)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _bincount(values: Tensor, weights: Tensor | None = None, minlength: int = 0) -> tuple[Tensor, str]:
    length = max(minlength, hint(values, "choices") or 1)
    dtype = torch.int64 if weights is None else torch.float64
    result = hollow_tensor((length,), (1,), dtype)
    give_hint(result, "mean", values.numel() / length)
    return result, f"{values.numel():,} values spread evenly over {length:,}"


def _repeat(repeats: Tensor, output_size: int | None = None) -> tuple[Tensor, str]:
    mean = hint(repeats, "mean")
    total = round(repeats.numel() * (1 if mean is None else mean))
    return hollow_tensor((total,), (1,), torch.int64), f"{total:,} in all"


def _unique(values: Tensor, *options: Any, **named: Any) -> tuple[tuple[Tensor, ...], str]:
    count = min(values.numel(), hint(values, "choices") or values.numel())
    different = hollow_tensor((count,), (1,), values.dtype)
    inverse = hollow_tensor(values.shape, torch.empty(values.shape, device="meta").stride(), torch.int64)
    return (different, inverse, hollow_tensor((count,), (1,), torch.int64)), f"{count:,} different values"


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> tuple[Tensor, str]:
    """Stand for torchvision's suppression of boxes that overlap: all of them stay, the first one first."""
    return torch.arange(boxes.shape[0]), f"all {boxes.shape[0]:,} boxes stay"


_STAND_INS: dict[str, Callable[..., tuple[Any, str]]] = {
    "_local_scalar_dense": _number,
    "is_nonzero": _truth,
    "equal": _equal,
    "allclose": _allclose,
    "_pack_padded_sequence": _packed,
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "index": _index,
    "bincount": _bincount,
    "repeat_interleave": _repeat,
    "_unique2": _unique,
    "unique_consecutive": _unique,
    "nms": _nms,
}
