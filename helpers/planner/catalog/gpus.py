"""GPUs known by name."""

from dataclasses import dataclass

from ...core.units import GiB
from ..recipe import RecipeError


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        total: bytes that PyTorch reports as its capacity; less than what the box says.
        flops16, flops32: dense peak FLOP/s in 16-bit and in FP32 arithmetic, from the vendor's data sheet.
        bandwidth: bytes/s of its memory, from the data sheet.
        bf16: whether it computes in BF16; older ones emulate it in FP32.
    """

    name: str
    total: int
    flops16: float
    flops32: float
    bandwidth: float
    bf16: bool = True


def _gpu(name: str, gib: float, tera16: float, tera32: float, giga: float, bf16: bool = True) -> Gpu:
    return Gpu(name, int(gib * GiB), tera16 * 1e12, tera32 * 1e12, giga * 1e9, bf16)


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("rtx-3060-12gb", 11.76, 51, 12.7, 360),
        _gpu("t4-16gb", 14.75, 65, 8.1, 320, bf16=False),
        _gpu("v100-16gb", 15.77, 125, 15.7, 900, bf16=False),
        _gpu("l4-24gb", 22.03, 121, 30.3, 300),
        _gpu("a10g-24gb", 22.06, 70, 31.2, 600),
        _gpu("rtx-4090-24gb", 23.64, 165, 82.6, 1008),
        _gpu("rtx-3090-24gb", 23.69, 71, 35.6, 936),
        _gpu("rtx-5090-32gb", 31.37, 210, 104.8, 1792),
        _gpu("v100-32gb", 31.74, 125, 15.7, 900, bf16=False),
        _gpu("a100-40gb", 39.39, 312, 19.5, 1555),
        _gpu("l40s-48gb", 44.39, 362, 91.6, 864),
        _gpu("a6000-48gb", 47.53, 155, 38.7, 768),
        _gpu("h100-80gb", 79.10, 989, 66.9, 3350),
        _gpu("a100-80gb", 79.15, 312, 19.5, 2039),
        _gpu("h200-141gb", 139.72, 989, 66.9, 4800),
        _gpu("b200-192gb", 178.35, 2250, 75, 8000),
    )
}


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name`; the beginning of a name is enough when only one GPU has it.

    Raises:
        RecipeError: none, or several, are called so.
    """
    wanted = name.lower().replace(" ", "-").replace("_", "-")
    found = [gpu for gpu in GPUS.values() if gpu.name == wanted] or [
        gpu for gpu in GPUS.values() if gpu.name.startswith(wanted) or wanted in gpu.name.split("-")
    ]
    if len(found) != 1:
        words = f"could be {', '.join(gpu.name for gpu in found)}" if found else "is not in the catalog"
        raise RecipeError(f"GPU {name!r} {words}; --list shows all, --budget takes any size in GiB.")
    return found[0]
