"""A roofline in words: a row for each thing that was measured."""

from typing import TYPE_CHECKING

from ...core.units import human_bytes, human_flops
from .interpolation import Rates, near_rates
from .link import Link

if TYPE_CHECKING:
    from .roofline import Roofline

_SKINNY = 16


def roofline_rows(roofline: "Roofline") -> list[tuple[str, str]]:
    """Return (what, how fast) for each row of the table, without a header."""
    rows = []
    for dtype, rates in roofline.products.items():
        largest = max(side for rate in rates for side in rate[:3])
        skinny = near_rates(rates, (_SKINNY, largest, largest))
        rows.append((f"products, {dtype}", f"{_best(rates)}; {human_flops(skinny)} with {_SKINNY} rows"))
    for name, by_dtype in roofline.kernels.items():
        rows += [(f"{_plain(name)}, {dtype}", _best(rates)) for dtype, rates in by_dtype.items()]
    (far, memory), (near, cache) = roofline.bandwidth[-1], max(roofline.bandwidth, key=lambda point: point[1])
    rows.append(("bandwidth, largest tensors", f"{_gigabytes(memory)}, {human_bytes(far)} at a time"))
    if cache > memory:
        rows.append(("bandwidth, at best", f"{_gigabytes(cache)}, {human_bytes(near)} at a time"))
    rows.append(("an empty operation", f"{_micro(roofline.dispatch)}, {_micro(roofline.recording)} more if recorded"))
    rows.append(("an operation of a tiny step", _micro(roofline.launch)))
    links = {
        "copy to the GPU, pinned": roofline.host_copy,
        "copy to the GPU, pageable": roofline.pageable_copy,
        "all-reduce of 2 ranks": roofline.link,
    }
    return rows + [(name, _link(link)) for name, link in links.items() if link]


def _plain(kernel: str) -> str:
    """Return the name of a kernel as people say it: "aten._scaled_dot_product_..." is attention."""
    plain = kernel.removeprefix("aten.")
    if "attention" in plain:
        plain = "attention_backward" if plain.endswith("_backward") else "attention"
    return plain.replace("_", " ")


def _best(rates: Rates) -> str:
    m, n, k, rate = max(rates, key=lambda point: point[3])
    return f"{human_flops(rate)} at {m} x {n} x {k}"


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:.3g} GB/s"


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs"


def _link(link: Link) -> str:
    return f"{_micro(link.latency)} + bytes / ({_gigabytes(link.bandwidth)}), off by up to {link.misfit:.0%}"
