"""Seconds of a training step, forecast from its work and a roofline.

Each operation takes as long as its FLOPs or its bytes need, whichever is longer. On a CPU the launches come on top. A
GPU works while the host prepares the next operations; so a phase takes as long as the slower of the two, and a step of
many small operations waits for the host, however fast the chip is.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from ..meter.kinds import Kind
from ..meter.roofline import Roofline
from ..meter.utilization import mfu
from ..meter.work import Work
from .catalog.clusters import Cluster
from .catalog.gpus import Gpu
from .catalog.layout_rates import layout_rates
from .catalog.models import spec_of
from .catalog.rooflines import fitted_rates, roofline_of
from .catalog.this_machine import THIS, this_roofline
from .config import TrainingConfig
from .forecast import Forecast
from .simulate.steps import Simulation
from .simulate.work_count import RepeatedWork

# A plan simulates CUDA's kernels; on a CPU this one does their work.
_FLASH_ON_A_CPU = "aten._scaled_dot_product_flash_attention_for_cpu"


def forecasts(simulation: Simulation, peak_bytes: int, gpus: Sequence[Gpu]) -> dict[str, Forecast]:
    """Forecast a simulated step on each GPU with a data sheet, and on this machine by its measured roofline.

    Args:
        simulation: of a recipe. With several ranks the messages take time, too (`forecast_over_ranks`); with offloading
            the host works, and there is no forecast.
        peak_bytes: planned to be allocated at its peak.
        gpus: to forecast for.
    """
    recipe = simulation.recipe
    if recipe.ranks > 1 or recipe.offload != "none":
        return {}
    result = {}
    for gpu in gpus:
        dtype = peak_dtype(simulation, gpu)
        if gpu.name == THIS:
            roofline = this_roofline()
            peak = roofline.peak(dtype if dtype in roofline.dtypes else "float32")
            result[gpu.name] = forecast(simulation, roofline, peak, in_tf32=in_tf32(recipe, gpu))
        elif gpu.bandwidth:
            peak, paging = gpu.peaks.get(dtype, gpu.flops32), paging_seconds(simulation, peak_bytes, gpu)
            result[gpu.name] = forecast(simulation, roofline_of(gpu), peak, paging, in_tf32(recipe, gpu))
    return result


def forecast_over_ranks(simulation: Simulation, cluster: Cluster) -> dict[str, Forecast]:
    """Forecast a simulated step of data-parallel ranks: that of one of them, and the messages that no pass hides.

    DDP and ZeRO send beside the last backward pass of a step, `fully_shard` beside all passes. The interval reaches
    from there to a step that hides nothing. Without a data sheet, or with offloading, there is no forecast.
    """
    from .layout.links import link_of

    recipe, gpu = simulation.recipe, cluster.gpu
    if recipe.offload != "none" or not gpu.bandwidth:
        return {}
    peak = gpu.peaks.get(peak_dtype(simulation, gpu), gpu.flops32)  # emulated BF16 computes in FP32
    one = forecast(simulation, roofline_of(gpu), peak, in_tf32=in_tf32(recipe, gpu))
    messages = simulation.sent / link_of(recipe.ranks, 1, cluster, layout_rates()).bandwidth
    beside = 1.0 if recipe.shard == "zero3" else 2 / 3 / recipe.gradient_accumulation_steps
    seconds = one.seconds + max(0.0, messages - beside * one.seconds)
    share = one.seconds / seconds
    return {
        gpu.name: replace(
            one,
            seconds=_rounded(seconds),
            low=_rounded(seconds * one.low / one.seconds),
            high=_rounded((one.seconds + messages) * one.high / one.seconds),
            per_second=_rounded(one.per_second * share),
            mfu=_rounded(one.mfu * share),
            bounds={name: _rounded(part * share) for name, part in one.bounds.items()}
            | {"messages": _rounded(1 - share)},
        )
    }


def in_tf32(recipe: TrainingConfig, gpu: Gpu) -> tuple[Kind, ...]:
    """Return the kinds of work that run in TF32 if their numbers are FP32 and the GPU has units for it.

    PyTorch lets cuDNN's convolutions do so by default; matmuls have to be told.
    """
    return tf32_kinds(gpu, matmuls=recipe.tf32, convolutions=True)


def tf32_kinds(gpu: Gpu, matmuls: bool, convolutions: bool) -> tuple[Kind, ...]:
    """Return the kinds of work that run in TF32 where PyTorch's settings allow it for matmuls and for convolutions."""
    kinds: list[Kind] = ["convolution"] if convolutions and gpu.vendor == "nvidia" else []
    return (*kinds, "matmul") if matmuls else tuple(kinds)


def as_computed(work: Work, in_tf32: Collection[Kind]) -> Work:
    """Return work on FP32 numbers in the dtype "tf32" if its kind is among `in_tf32`; other work as it is."""
    return replace(work, dtype="tf32") if work.dtype == "float32" and work.kind in in_tf32 else work


def peak_dtype(simulation: Simulation, gpu: Gpu) -> str:
    """Return the dtype whose peak a step's MFU is a share of: in which most of its FLOPs are computed."""
    recipe = simulation.recipe
    dtype = str(recipe.amp_dtype or recipe.weight_dtype).removeprefix("torch.")
    if dtype != "float32":
        return dtype
    quick = in_tf32(recipe, gpu)
    flops = sum(step.times * step.work.flops for step in simulation.works if step.work.kind in quick)
    every = sum(step.times * step.work.flops for step in simulation.works)
    return "tf32" if 2 * flops > every else "float32"


def forecast(
    simulation: Simulation, roofline: Roofline, peak: float, paging: float = 0.0, in_tf32: Collection[Kind] = ()
) -> Forecast:
    """Forecast a simulated step.

    Args:
        simulation: of a recipe for one GPU.
        roofline: of the machine.
        peak: its FLOP/s, of which the MFU is a share.
        paging: seconds in which state leaves the GPU and comes back, in each step.
        in_tf32: kinds of work that compute with FP32 numbers in TF32, where the roofline has rates for it.
    """
    recipe = simulation.recipe
    unit = "images" if spec_of(recipe).images else "tokens"
    by_bound = seconds_by_bound([_computed(step, roofline, in_tf32) for step in simulation.works], roofline)
    by_bound["paging"] = paging
    seconds = sum(by_bound.values())
    samples = recipe.micro_batch_size * recipe.gradient_accumulation_steps * (2 if recipe.method == "dpo" else 1)
    return Forecast(
        *(_rounded(seconds * factor) for factor in (1.0, *fitted_rates().interval)),
        per_second=_rounded(samples * (recipe.mean_seq if unit == "tokens" else 1) / seconds),
        unit=unit,
        mfu=_rounded(mfu(needed_flops(simulation.works), seconds, peak)),
        bounds={name: _rounded(part / seconds) for name, part in by_bound.items()},
    )


def _computed(step: RepeatedWork, roofline: Roofline, in_tf32: Collection[Kind]) -> RepeatedWork:
    """Return the work in the dtype in which it is computed. What was measured by itself was measured so."""
    return step if step.work.name in roofline.kernels else replace(step, work=as_computed(step.work, in_tf32))


def paging_seconds(simulation: Simulation, peak_bytes: int, gpu: Gpu) -> float:
    """Return the seconds in which paged state leaves the GPU and comes back, as far as it does not fit beside the peak.

    Each update waits for its own part of the state, after another part has made room for it (`PagedAdamW8bit`).
    """
    state = simulation.host_bytes if simulation.recipe.paged else 0
    beyond = max(0, peak_bytes + state - gpu.room)
    return 2 * min(beyond, state) / gpu.link if gpu.link else 0.0


def seconds_by_bound(works: Sequence[RepeatedWork], roofline: Roofline) -> Counter[str]:
    """Return the seconds of a step by what bounds them: "compute", "memory" or "launch"."""
    if roofline.device == "cpu":
        return _one_after_the_other(works, roofline)
    total: Counter[str] = Counter()
    chip = replace(roofline, launch=0.0)
    for phase in dict.fromkeys(step.phase for step in works):
        during = [step for step in works if step.phase == phase]
        busy = _one_after_the_other(during, chip)
        host = roofline.launch * sum(step.times for step in during)
        total += busy
        total["launch"] += max(0.0, host - busy.total())
    return total


def _one_after_the_other(works: Sequence[RepeatedWork], roofline: Roofline) -> Counter[str]:
    total: Counter[str] = Counter()
    for step in works:
        seconds, bound = roofline.seconds(_as_on(roofline.device, step.work))
        total[bound] += step.times * seconds
    return total


def _as_on(device: str, work: Work) -> Work:
    if device != "cpu" or work.kind != "attention":
        return work
    return replace(work, name=_FLASH_ON_A_CPU + ("_backward" if work.name.endswith("_backward") else ""))


def needed_flops(works: Sequence[RepeatedWork]) -> float:
    """Return the FLOPs of a step's passes, without those that checkpointing does a second time, nor the optimizer's."""
    return sum(step.times * step.work.flops for step in works if not step.recomputed and "optimizer" not in step.phase)


def _rounded(value: float) -> float:
    """Four digits are more than a forecast knows."""
    return float(f"{value:.4g}")
