"""How long a step would take: the work of its operations, by the planner's cost model."""

from collections import Counter

import torch

from ..core.precision import fp32_precision
from ..meter.utilization import mfu
from ..meter.work import Work
from ..planner.catalog.gpus import Gpu
from ..planner.catalog.rooflines import fitted_rates, roofline_of
from ..planner.costs import as_computed, needed_flops, seconds_by_bound, tf32_kinds
from ..planner.forecast import Forecast
from ..planner.simulate.work_count import RepeatedWork
from .recurrent_work import RecurrentWork, recurrent_seconds

# Seconds that a host takes for an operation of an eager training step, Python and autograd included. The lower end is
# assumed, for a fast host. On the virtual machine of an H100, EfficientNet-B0 took 28 us per kernel, with the GPU busy
# 40% of the time (tests/virtual_gpu/h100.json); GPT-2 and a Llama of 1B have 1.3 to 1.4 kernels per operation.
HOST = (10e-6, 40e-6)


def host_seconds(works: Counter[tuple[Work, str, bool]]) -> tuple[float, float]:
    """Return the seconds, at least and at most, in which a host launches the operations of a step one by one."""
    low, high = (seconds * sum(works.values()) for seconds in HOST)
    return low, high


def computed(work: Work, gpu: Gpu) -> Work:
    """Return the work in the dtype in which `gpu` computes it under PyTorch's settings of this moment.

    FP32 convolutions and recurrent layers run in TF32 by default; matmuls do if the program has allowed it.
    """
    if work.dtype != "float32" or not work.flops:
        return work
    allowed = {what: dtype == "TF32" for what, dtype in fp32_precision().items()}
    if isinstance(work, RecurrentWork):
        allowed["matmuls"] = torch.backends.cudnn.rnn.fp32_precision == "tf32"
    return as_computed(work, tf32_kinds(gpu, **allowed))


def step_forecast(works: Counter[tuple[Work, str, bool]], gpu: Gpu) -> Forecast | None:
    """Return the forecast of a step on `gpu`; None where it has no data sheet, or nothing was done.

    Args:
        works: how often the step does each work, as `computed`, with its phase and whether it is recomputed.
        gpu: of the catalog.
    """
    steps = [RepeatedWork(work, phase, again, times) for (work, phase, again), times in works.items()]
    if not gpu.bandwidth or not steps:
        return None
    roofline = roofline_of(gpu)
    by_bound = seconds_by_bound([step for step in steps if not isinstance(step.work, RecurrentWork)], roofline)
    for step in steps:
        if isinstance(step.work, RecurrentWork):
            for bound, part in recurrent_seconds(step.work, roofline).items():
                by_bound[bound] += step.times * part
    seconds = by_bound.total()
    flops: Counter[str] = Counter()
    for step in steps:
        flops[step.work.dtype] += step.times * step.work.flops
    dtype = max(flops, key=lambda name: flops[name])
    peak = gpu.peaks.get(dtype, gpu.flops32)
    low, high = fitted_rates().interval
    bounds = {name: part / seconds for name, part in by_bound.items()}
    share = mfu(needed_flops(steps), seconds, peak)
    return Forecast(seconds, seconds * low, seconds * high, 1 / seconds, "steps", share, bounds)
