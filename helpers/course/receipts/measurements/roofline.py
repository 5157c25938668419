"""What the device can do: the figures of its roofline that have one number."""

import torch

from ....claims.claims import Claims
from ....core.device import ranks_device
from ....meter.roofline.measured import measure_roofline
from ....ranks.link import measure_link


def measure(claims: Claims, device: torch.device) -> None:
    """Record the largest rates, the bandwidths, what an operation costs besides, and the process group's law."""
    roofline = measure_roofline(device)
    for dtype in roofline.dtypes:
        claims.figure("roofline: the fastest matrix product", dtype, roofline.peak(dtype) / 1e9, "GFLOP/s")
    (_, memory), cache = roofline.bandwidth[-1], max(rate for _, rate in roofline.bandwidth)
    claims.figure("roofline: bandwidth", "an addition of the largest tensors", memory / 1e9, "GB/s")
    claims.figure("roofline: bandwidth", "an addition of tensors of the best size", cache / 1e9, "GB/s")
    claims.figure("roofline: an operation besides its work", "by itself", roofline.dispatch * 1e6, "µs")
    claims.figure("roofline: an operation besides its work", "in a tiny step", roofline.launch * 1e6, "µs")
    link, subject = measure_link(), f"all-reduce, 2 ranks on {ranks_device(2)}"
    claims.figure("roofline: latency of a message", subject, link.latency * 1e6, "µs")
    claims.figure("roofline: bandwidth of messages", subject, link.bandwidth / 1e9, "GB/s")
    for kind, copy in {"pinned": roofline.host_copy, "pageable": roofline.pageable_copy}.items():
        if copy:
            claims.figure("roofline: copies to the GPU", f"{kind} memory", copy.bandwidth / 1e9, "GB/s")
