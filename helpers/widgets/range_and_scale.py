"""Scale explorer: real tensors beside the range of an FP8 format, which moves with the scale."""

from collections.abc import Callable, Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..formats.range_ruler import range_ruler
from .explore import explore

FORMATS = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
SPAN = (-46, 22)  # the powers of two that the figure shows


def explore_scale(tensors: Mapping[str, Tensor], describe: Callable[[Tensor, torch.dtype, float], str]) -> None:
    """Show a histogram of a tensor's magnitudes and the range of a format, with controls for both and for the scale.

    Args:
        tensors: by name; the first is shown first.
        describe: given a tensor, a format and a scale, says what the cast does to the numbers; it ends the title.
    """

    def draw(tensor: str, format: str, log2_scale: int) -> Figure:
        x, dtype, scale = tensors[tensor], FORMATS[format], 2.0**log2_scale
        info = torch.finfo(dtype)
        ends = (info.smallest_normal * info.eps * scale, info.smallest_normal * scale, info.max * scale)
        title = f"{tensor} in {format}: {describe(x, dtype, scale)}"
        return range_ruler(x[x != 0].abs().cpu().numpy(), ends, title, SPAN)

    explore(
        draw,
        "A histogram of the magnitudes of a tensor, and a band for the format's range, which the scale moves.",
        tensor=(next(iter(tensors)), tuple(tensors)),
        format=("E4M3", tuple(FORMATS)),
        log2_scale=(0, range(-40, 5)),
    )
