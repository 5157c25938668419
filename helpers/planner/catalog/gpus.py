"""GPUs known by name: one file each in `helpers/planner/hardware`.

A file holds what the data sheet says, with its sources, the clusters that are built of the GPU, and the rates that
others have measured on it. Nothing else in the planner knows a GPU by name, so a new file is all that a new GPU needs.
"""

import difflib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.units import GiB, KiB, MiB
from ..config import RecipeError

TERA, GIGA = 1e12, 1e9
HARDWARE = Path(__file__).parents[1] / "hardware"

# PyTorch's default for CUBLAS_WORKSPACE_CONFIG (`parseChosenWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp):
# ":4096:2:16:8" (KiB and counts), and 32 MiB on Hopper and Blackwell. Earlier versions count Hopper only. With ROCm,
# 128 MiB on gfx94 and gfx95.
_WORKSPACE = 2 * 4096 * KiB + 8 * 16 * KiB
_LARGE_WORKSPACE = 32 * MiB
_LARGE_WORKSPACE_MAJORS = (9, 10, 12)
_ROCM_WORKSPACE = 128 * MiB


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        total: bytes that `torch.cuda.get_device_properties` reports as its memory; less than what the box says.
        flops16, flops32: dense peak FLOP/s in 16-bit and in FP32 arithmetic.
        tf32, flops8, flops4: dense peak FLOP/s in TF32, in FP8 and in FP4; 0 where it has no units for them. Where a
            vendor gives two rates, it is the one that accumulates in FP32, as training does.
        bandwidth: bytes/s of its memory.
        capability: compute capability (developer.nvidia.com/cuda-gpus); None for a GPU that is only a size.
        source: where its figures come from.
        link: bytes/s from the host and to it, each way.
        context: bytes of the CUDA context and loaded kernels, outside PyTorch's allocator; 0.3 to 2 GiB are seen.
        vendor: "nvidia" or "amd".
        multiprocessors, watts: streaming multiprocessors (compute units of AMD), and the power limit.
        rates: (dtype, FLOP/s) of large matmuls, fitted to published measurements; () if there are none.
        like: the GPU from whose measured rates those of this one follow, by the ratio of their sheets and powers.
        attention_share: fused attention's share of `flops16`; 0: that of its generation.
        common: whether a plan without a GPU answers for it.
        skypilot: SkyPilot's name for it.
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
    flops4: float = 0.0
    link: float = 0.0
    vendor: str = "nvidia"
    multiprocessors: int = 0
    watts: float = 0.0
    rates: tuple[tuple[str, float], ...] = ()
    like: str = ""
    attention_share: float = 0.0
    common: bool = False
    skypilot: str = ""

    @property
    def room(self) -> int:
        """Bytes that are left for PyTorch's allocator."""
        return self.total - self.context

    @property
    def bf16(self) -> bool:
        """Whether it computes in BF16; GPUs before Ampere emulate it in FP32."""
        return self.capability is None or self.capability >= (8, 0)

    @property
    def generation(self) -> str:
        """What tells its kernels from others': the first number of the compute capability, "9", of AMD "amd 9"."""
        major = str((self.capability or (8, 0))[0])
        return major if self.vendor == "nvidia" else f"{self.vendor} {major}"

    @property
    def peaks(self) -> dict[str, float]:
        """Dense peak FLOP/s by the dtype of a matmul's operands; without the dtypes that it has no units for.

        "tf32" is FP32 as it is computed where TF32 is allowed: by PyTorch's default in convolutions, not in matmuls.
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
        """Bytes of cuBLAS's workspace, one for each thread that multiplies matrices; None if unknown."""
        if self.capability is None:
            return None
        if self.vendor == "amd":
            return _ROCM_WORKSPACE
        return _LARGE_WORKSPACE if self.capability[0] in _LARGE_WORKSPACE_MAJORS else _WORKSPACE

    def roofline_seconds(self, flops: float, traffic: float, precision: str) -> float:
        """Return the seconds below which it cannot do `flops` operations nor move `traffic` bytes of its memory.

        BF16 on a GPU without it is emulated in FP32, and counts at that rate. So does "tf32" on one that has none.
        """
        if precision == "tf32":
            return max(flops / (self.tf32 or self.flops32), traffic / self.bandwidth)
        slow = precision == "fp32" or (precision.startswith("bf16") and not self.bf16)
        return max(flops / (self.flops32 if slow else self.flops16), traffic / self.bandwidth)


_NEEDED = {"name", "sources", "capability", "multiprocessors", "watts", "usable_gib", "memory_gb_s", "host_gb_s"}
_OPTIONAL = {"vendor", "like", "attention_share", "common", "skypilot", "clusters", "fitted"}
_AS_THEY_ARE = ("vendor", "multiprocessors", "watts", "like", "attention_share", "common", "skypilot")
_PEAKS = {"sixteen_bits": "flops16", "float32": "flops32", "tf32": "tf32", "float8": "flops8", "float4": "flops4"}


def read_sheet(path: Path) -> dict[str, Any]:
    """Return what the file of a GPU says, once its fields are known to be the right ones.

    Raises:
        RecipeError: the file cannot be read, or something is missing or unknown in it.
    """
    try:
        sheet = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path} cannot be read as the file of a GPU: {error}") from None
    missing = sorted({*_NEEDED, "peak_tflops"} - set(sheet))
    unknown = sorted(set(sheet) - _NEEDED - _OPTIONAL - {"peak_tflops"})
    if missing or unknown:
        words = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        raise RecipeError(f"{path.name} {' and '.join(words)}.")
    if not {"sixteen_bits", "float32"} <= set(sheet["peak_tflops"]) <= set(_PEAKS):
        raise RecipeError(f"{path.name}: peak_tflops has sixteen_bits, float32 and perhaps tf32, float8 and float4.")
    return sheet


def gpu_of(sheet: dict[str, Any]) -> Gpu:
    """Return the GPU that a file describes."""
    return Gpu(
        sheet["name"],
        int(sheet["usable_gib"] * GiB),
        **{_PEAKS[name]: TERA * rate for name, rate in sheet["peak_tflops"].items()},
        bandwidth=sheet["memory_gb_s"] * GIGA,
        link=sheet["host_gb_s"] * GIGA,
        capability=tuple(sheet["capability"]),
        source="; ".join(sheet["sources"]),
        rates=tuple(sheet.get("fitted", {}).items()),
        **{name: sheet[name] for name in _AS_THEY_ARE if name in sheet},
    )


SHEETS = [read_sheet(path) for path in HARDWARE.glob("*.toml")]
GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in sorted(map(gpu_of, SHEETS), key=lambda gpu: (gpu.total, gpu.name))}


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name`, or described by the TOML file of that path.

    Some whole parts of a name are enough, in its order ("4090", "a100-80"), when only one GPU has them, or only one of
    the common ones, or one of them has no others but its memory. "h20" is not the beginning of H200, and "4070" not a
    4070 Ti. A size that is a tenth off is that of the same GPU: vendors sell a B200 as 180 GB and as 192 GB.

    Raises:
        RecipeError: no GPU, or several, match.
    """
    if name.endswith(".toml"):
        return gpu_of(read_sheet(Path(name)))
    asked = gpu_words(name)
    matches = [gpu for gpu in GPUS.values() if _is_called(gpu, "".join(asked))]
    matches = matches or [gpu for gpu in GPUS.values() if _is_called(gpu, _kernel(asked))] or _of_nearly_the_size(name)
    common = [gpu for gpu in matches if gpu.common]
    whole = [gpu for gpu in matches if _kernel(gpu.name.split("-")[:-1]) == _kernel(asked)]
    chosen = next((few for few in (common, whole) if len(few) == 1), matches)
    if len(chosen) == 1:
        return chosen[0]
    if matches:
        words = f"could be {' or '.join(gpu.name for gpu in matches)}."
    else:
        near = nearest(name, GPUS)
        words = "is not in the catalog" + (f": did you mean {' or '.join(near)}?" if near else ".")
    raise RecipeError(f"GPU {name!r} {words} `plan --list` shows all GPUs, and `plan --budget` takes any size in GiB.")


def _of_nearly_the_size(name: str) -> list[Gpu]:
    """Return the GPUs that have the name's parts before its size in GB, and at most a tenth more or less of it."""
    *parts, last = gpu_words(name) or [""]
    if not parts or not re.fullmatch(r"\d+gb", last):
        return []
    sizes = {gpu.name: gpu.name.rpartition("-")[2].removesuffix("gb") for gpu in GPUS.values()}
    called = [gpu for gpu in GPUS.values() if sizes[gpu.name].isdecimal() and _is_called(gpu, "".join(parts))]
    return [gpu for gpu in called if abs(int(last[:-2]) / int(sizes[gpu.name]) - 1) <= _ANOTHER_SIZE]


def nearest(name: str, known: dict[str, Any] | list[str]) -> list[str]:
    """Return up to three of the `known` names that look like `name`."""
    query = "-".join(gpu_words(name))

    def likeness(each: str) -> float:
        parts = (each, each.rpartition("-")[0], *(part for part in each.split("-") if part not in _OTHERS))
        begins = 0.9 * any(part.startswith(query) or sorted(part) == sorted(query) for part in parts)
        return max(begins, *(difflib.SequenceMatcher(None, query, part).ratio() for part in parts))

    likely = sorted((each for each in known if query and likeness(each) >= 0.7), key=lambda each: -likeness(each))
    return likely[:3]


_ASIDE = ("nvidia", "amd", "geforce", "instinct", "tesla", "dgx", "hgx", "generation")
_ASIDE += ("sxm", "sxm2", "sxm3", "sxm4", "sxm5", "gpu", "blackwell", "ultra", "hopper", "server", "edition")
_ASIDE += ("hbm2", "hbm2e", "hbm3", "hbm3e")
_SERIES = "rtx"  # which some say and some leave out
_OTHERS = ("ti", "super")  # with which a name is another GPU's
_JOINED = re.compile(r"(?<=\d)(ti|super|ada)\b|(?<=\dti)(super)\b")
_ANOTHER_SIZE = 0.1


def gpu_words(name: str) -> list[str]:
    """Return the parts of a GPU's name, without vendor, brand, system and kind of memory."""
    apart = _JOINED.sub(r"-\g<0>", name.lower())
    return [part for part in re.split(r"[^a-z0-9]+", apart) if part and part not in _ASIDE]


def _kernel(parts: list[str]) -> str:
    """Return the parts without the name of a series, joined."""
    return "".join(part for part in parts if part != _SERIES).removeprefix(_SERIES)


def _is_called(gpu: Gpu, joined: str) -> bool:
    """Return whether consecutive parts of the GPU's name make `joined`, the joined parts of what was asked."""
    parts = gpu.name.split("-")
    runs = [(parts[i:j], parts[j : j + 1]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)]
    names = ["".join(run) for run, after in runs if not set(after) & set(_OTHERS)]
    return bool(joined) and any(joined in (name, name.removesuffix("gb")) for name in names)
