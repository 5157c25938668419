"""GPUs known by name."""

from dataclasses import dataclass

from ...core.units import GiB, KiB, MiB
from ..recipe import RecipeError

TERA, GIGA = 1e12, 1e9

# Sources. Rates are dense. Where a vendor gives two rates of 16 or 8 bits, it is the one that accumulates in FP32, as
# training does. A sheet that counts sparsity prints twice as much.
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
        tf32, flops8: dense peak FLOP/s in TF32 and in FP8; 0 where it has no units for them.
        bandwidth: bytes/s of its memory.
        capability: compute capability (developer.nvidia.com/cuda-gpus); None for a GPU that is only a size.
        source: where the two rates and the bandwidth come from.
        link: bytes/s from the host and to it, each way.
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
    tf32: float = 0.0
    flops8: float = 0.0
    link: float = 0.0

    @property
    def room(self) -> int:
        """Bytes that are left for PyTorch's allocator."""
        return self.total - self.context

    @property
    def bf16(self) -> bool:
        """Whether it computes in BF16; GPUs before Ampere emulate it in FP32."""
        return self.capability is None or self.capability >= (8, 0)

    @property
    def peaks(self) -> dict[str, float]:
        """Dense peak FLOP/s by the dtype of a product's operands; without the dtypes that it has no units for.

        "tf32" is FP32 as it is computed where TF32 is allowed, which is not PyTorch's default.
        """
        rates = {
            "float32": self.flops32,
            "tf32": self.tf32,
            "float16": self.flops16,
            "bfloat16": self.flops16 if self.bf16 else 0.0,
            "float8_e4m3fn": self.flops8,
        }
        return {dtype: rate for dtype, rate in rates.items() if rate}

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


def _gpu(name: str, gib: float, sheet: tuple[float, ...], capability: tuple[int, int], source: str) -> Gpu:
    """Return a GPU with `gib` GiB usable.

    `sheet`: TFLOP/s in 16 bits, FP32, TF32 and FP8 (0: no units), then GB/s of the memory and of PCIe, one way.
    """
    *rates, memory, link = sheet
    flops16, flops32, tf32, flops8 = (rate * TERA for rate in rates)
    moves = {"bandwidth": memory * GIGA, "link": link * GIGA}
    return Gpu(
        name, int(gib * GiB), flops16, flops32, **moves, capability=capability, source=source, tf32=tf32, flops8=flops8
    )


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("rtx-3060-12gb", 11.76, (25.5, 12.7, 12.7, 0, 360, 32), (8, 6), _GEFORCE_30),
        _gpu("t4-16gb", 14.75, (65, 8.1, 0, 0, 320, 16), (7, 5), _TURING),
        _gpu("v100-16gb", 15.77, (125, 15.7, 0, 0, 900, 16), (7, 0), _VOLTA),
        _gpu("l4-24gb", 22.03, (121, 30.3, 60, 242, 300, 32), (8, 9), _L4),
        _gpu("a10g-24gb", 22.06, (70, 31.2, 35, 0, 600, 32), (8, 6), _A10G),
        _gpu("rtx-4090-24gb", 23.64, (165, 82.6, 82.6, 330.3, 1008, 32), (8, 9), _GEFORCE_40),
        _gpu("rtx-3090-24gb", 23.69, (71, 35.6, 35.6, 0, 936, 32), (8, 6), _GEFORCE_30),
        _gpu("rtx-5090-32gb", 31.37, (210, 104.8, 104.8, 419, 1792, 64), (12, 0), _GEFORCE_50),
        _gpu("v100-32gb", 31.74, (125, 15.7, 0, 0, 900, 16), (7, 0), _VOLTA),
        _gpu("a100-40gb", 39.39, (312, 19.5, 156, 0, 1555, 32), (8, 0), _A100),
        _gpu("l40s-48gb", 44.39, (362, 91.6, 183, 733, 864, 32), (8, 9), _L40S),
        _gpu("a6000-48gb", 47.53, (155, 38.7, 77.4, 0, 768, 32), (8, 6), _A6000),
        _gpu("h100-80gb", 79.10, (989, 66.9, 495, 1979, 3350, 64), (9, 0), _HOPPER),
        _gpu("a100-80gb", 79.15, (312, 19.5, 156, 0, 2039, 32), (8, 0), _A100),
        _gpu("h200-141gb", 139.72, (989, 66.9, 495, 1979, 4800, 64), (9, 0), _HOPPER),
        _gpu("b200-192gb", 178.35, (2250, 75, 1100, 4500, 8000, 64), (10, 0), _B200),
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
