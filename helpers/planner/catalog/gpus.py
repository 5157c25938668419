"""GPUs known by name."""

from dataclasses import dataclass

from ...core.units import GiB, KiB, MiB
from ..recipe import RecipeError

TERA, GIGA = 1e12, 1e9

# Sources. Rates are dense. Where a vendor gives two 16-bit rates, it is the one that accumulates in FP32, as training
# does; only the RTX 3060's 51 TFLOP/s accumulate in FP16 (25.5 in FP32), so its time bounds are too low.
_VOLTA = "NVIDIA Tesla V100 data sheet (SXM2)"
_TURING = "NVIDIA T4 data sheet"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet (SXM)"
_A10G = "NVIDIA A10G data sheet (AWS G5 instances)"
_A6000 = "NVIDIA RTX A6000 data sheet"
_GEFORCE_30 = "NVIDIA Ampere GA102 GPU Architecture white paper; nvidia.com, GeForce RTX 30 specifications"
_GEFORCE_40 = "NVIDIA Ada GPU Architecture white paper"
_GEFORCE_50 = "NVIDIA RTX Blackwell GPU Architecture white paper"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet"
_L40S = "NVIDIA L40S data sheet"
_HOPPER = "NVIDIA H100 and H200 Tensor Core GPU data sheets (SXM)"
_B200 = "NVIDIA DGX B200 data sheet, per GPU"

# PyTorch's default for CUBLAS_WORKSPACE_CONFIG (`parseChosenWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp):
# ":4096:2:16:8" (KiB and counts), and 32 MiB on Hopper and Blackwell. Earlier versions count Hopper only.
_WORKSPACE = 2 * 4096 * KiB + 8 * 16 * KiB
_LARGE_WORKSPACE = 32 * MiB
_LARGE_WORKSPACE_MAJORS = (9, 10, 12)


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        total: bytes that `torch.cuda.get_device_properties` reports as its memory; less than what the box says.
        flops16, flops32: dense peak FLOP/s in 16-bit and in FP32 arithmetic.
        bandwidth: bytes/s of its memory.
        capability: compute capability (developer.nvidia.com/cuda-gpus); None for a GPU that is only a size.
        source: where the two rates and the bandwidth come from.
        context: bytes of the CUDA context and loaded kernels, outside PyTorch's allocator; 0.3 to 2 GiB are seen.
    """

    name: str
    total: int
    flops16: float = 0.0
    flops32: float = 0.0
    bandwidth: float = 0.0
    capability: tuple[int, int] | None = None
    source: str = ""
    context: int = GiB // 2

    @property
    def room(self) -> int:
        """Bytes that are left for PyTorch's allocator."""
        return self.total - self.context

    @property
    def bf16(self) -> bool:
        """Whether it computes in BF16; GPUs before Ampere emulate it in FP32."""
        return self.capability is None or self.capability >= (8, 0)

    @property
    def cublas_workspace(self) -> int | None:
        """Bytes of cuBLAS's workspace, one for each thread that multiplies matrices; None where nobody knows."""
        if self.capability is None:
            return None
        return _LARGE_WORKSPACE if self.capability[0] in _LARGE_WORKSPACE_MAJORS else _WORKSPACE

    def roofline_seconds(self, flops: float, traffic: float, precision: str) -> float:
        """Return the seconds below which it cannot do `flops` operations nor move `traffic` bytes of its memory.

        BF16 on a GPU without it is emulated in FP32, and counts at that rate.
        """
        slow = precision == "fp32" or (precision.startswith("bf16") and not self.bf16)
        return max(flops / (self.flops32 if slow else self.flops16), traffic / self.bandwidth)


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("rtx-3060-12gb", int(11.76 * GiB), 51 * TERA, 12.7 * TERA, 360 * GIGA, (8, 6), _GEFORCE_30),
        Gpu("t4-16gb", int(14.75 * GiB), 65 * TERA, 8.1 * TERA, 320 * GIGA, (7, 5), _TURING),
        Gpu("v100-16gb", int(15.77 * GiB), 125 * TERA, 15.7 * TERA, 900 * GIGA, (7, 0), _VOLTA),
        Gpu("l4-24gb", int(22.03 * GiB), 121 * TERA, 30.3 * TERA, 300 * GIGA, (8, 9), _L4),
        Gpu("a10g-24gb", int(22.06 * GiB), 70 * TERA, 31.2 * TERA, 600 * GIGA, (8, 6), _A10G),
        Gpu("rtx-4090-24gb", int(23.64 * GiB), 165 * TERA, 82.6 * TERA, 1008 * GIGA, (8, 9), _GEFORCE_40),
        Gpu("rtx-3090-24gb", int(23.69 * GiB), 71 * TERA, 35.6 * TERA, 936 * GIGA, (8, 6), _GEFORCE_30),
        Gpu("rtx-5090-32gb", int(31.37 * GiB), 210 * TERA, 104.8 * TERA, 1792 * GIGA, (12, 0), _GEFORCE_50),
        Gpu("v100-32gb", int(31.74 * GiB), 125 * TERA, 15.7 * TERA, 900 * GIGA, (7, 0), _VOLTA),
        Gpu("a100-40gb", int(39.39 * GiB), 312 * TERA, 19.5 * TERA, 1555 * GIGA, (8, 0), _A100),
        Gpu("l40s-48gb", int(44.39 * GiB), 362 * TERA, 91.6 * TERA, 864 * GIGA, (8, 9), _L40S),
        Gpu("a6000-48gb", int(47.53 * GiB), 155 * TERA, 38.7 * TERA, 768 * GIGA, (8, 6), _A6000),
        Gpu("h100-80gb", int(79.10 * GiB), 989 * TERA, 66.9 * TERA, 3350 * GIGA, (9, 0), _HOPPER),
        Gpu("a100-80gb", int(79.15 * GiB), 312 * TERA, 19.5 * TERA, 2039 * GIGA, (8, 0), _A100),
        Gpu("h200-141gb", int(139.72 * GiB), 989 * TERA, 66.9 * TERA, 4800 * GIGA, (9, 0), _HOPPER),
        Gpu("b200-192gb", int(178.35 * GiB), 2250 * TERA, 75 * TERA, 8000 * GIGA, (10, 0), _B200),
    )
}


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name`; the beginning of a name is enough when only one GPU has it.

    Raises:
        RecipeError: no GPU, or several, match.
    """
    query = name.lower().replace(" ", "-").replace("_", "-")
    matches = [gpu for gpu in GPUS.values() if gpu.name == query] or [
        gpu for gpu in GPUS.values() if gpu.name.startswith(query) or query in gpu.name.split("-")
    ]
    if len(matches) != 1:
        words = f"could be {', '.join(gpu.name for gpu in matches)}" if matches else "is not in the catalog"
        raise RecipeError(f"GPU {name!r} {words}; --list shows all, --budget takes any size in GiB.")
    return matches[0]
