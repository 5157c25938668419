"""From a simulated step to an answer: how much, where, does it fit, and what to change first."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..core.units import GiB, MiB, human_bytes
from ..meter.count import TENANTS, Block, Op
from .allocator import CachingAllocator, OutOfMemory
from .catalog.gpus import GPUS, Gpu, find_gpu
from .recipe import Recipe, RecipeError
from .simulate.sharding import fully_sharded
from .simulate.steps import Simulation, simulate

CONTEXT = GiB // 2  # CUDA context and loaded kernels, outside the allocator; 0.3 to 2 GiB have been seen
CUBLAS_WORKSPACE = 33 * MiB // 4  # one for the forward and one for the backward thread; 32 MiB each on Hopper
# What the replay cannot know moves reserved memory by about this much: kernels and optimizers of another PyTorch
# version ask in another order, libraries take scratch. Chosen from the published figures in tests/planner/published.py.
BELOW, ABOVE = 0.03, 0.11
MANY = 6  # from this number of recipes on, worker processes earn the seconds they take to start


@dataclass
class Plan:
    """What a recipe will need. All figures are bytes on one GPU unless they say otherwise.

    Attributes:
        peak_allocated_bytes: what `torch.cuda.max_memory_allocated()` will say after two steps.
        at_peak: that peak by tenant.
        peak_at: the phase, operation and module in which it is reached.
        reserved_bytes: between which two figures `torch.cuda.max_memory_reserved()` will lie.
        reserved_because: what moves reserved away from allocated, in words.
        floor_bytes: parameters, their gradients and the optimizer's state; no plain run of this recipe can need less.
        fits: whether each GPU asked about has room for it, next to the CUDA context. Where `reserved_bytes` would
            exceed the GPU, the allocator has to hand its cache back now and then, which takes time.
        at_least_seconds: a step cannot take less on each GPU: FLOPs over peak FLOP/s, or traffic over bandwidth.
        remedies: what to change when it does not fit; each with its own predicted peak.
        flops, recomputed_share: of one optimizer step, and the share that checkpointing computes twice.
        piece_traffic_bytes, update_traffic_bytes: what the GPU's memory has to hand over at least, for each micro-batch
            (weights) and once an optimizer step (weights, gradients and state).
        peaks: the peak of each phase, and the operation that made it.
        sent_bytes: what one rank sends in one optimizer step.
        host_bytes: what offloading keeps in the memory of the host.
        seconds: how long the planning took.
    """

    recipe: Recipe
    peak_allocated_bytes: int
    at_peak: dict[str, int]
    peak_at: str
    reserved_bytes: tuple[int, int]
    reserved_because: list[str]
    floor_bytes: int
    fits: dict[str, bool]
    roofline_seconds: dict[str, float]
    flops: int
    recomputed_share: float
    piece_traffic_bytes: int
    update_traffic_bytes: int
    sent_bytes: int
    host_bytes: int
    parameters: int
    trained: int
    peaks: dict[str, tuple[int, str]] = field(default_factory=dict)
    remedies: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain lists, dictionaries and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        low, high = self.reserved_bytes
        lines = [
            self.recipe.words,
            f"  {self.parameters / 1e9:.3f}B parameters, {self.trained / 1e6:,.1f}M of them trained",
            f"  peak allocated  {human_bytes(self.peak_allocated_bytes)}",
            f"    in {self.peak_at}",
        ]
        lines += [f"    {t:<23}{human_bytes(n):>12}" for t, n in self.at_peak.items() if n >= MiB // 10]
        lines.append(f"  reserved        {human_bytes(low)} to {human_bytes(high)}, because of")
        lines += [f"    - {reason}" for reason in self.reserved_because]
        lines.append(f"  {self.flops / 1e12:,.2f} TFLOP a step, {self.recomputed_share:.0%} of them recomputed")
        if self.sent_bytes:
            lines.append(f"  {human_bytes(self.sent_bytes)} sent by each rank a step")
        if self.host_bytes:
            lines.append(f"  {human_bytes(self.host_bytes)} in the memory of the host")
        for name, fits in self.fits.items():
            bound = self.roofline_seconds.get(name)
            speed = f"a step takes at least {bound * 1e3:,.3g} ms (a bound, not a forecast)" if bound else ""
            lines.append(f"  {name:<16}{'fits' if fits else 'does not fit':<14}{speed if fits else ''}".rstrip())
        if self.remedies:
            lines.append("  what to change, one at a time; the first is the least trouble:")
            for r in self.remedies:
                verdict = "fits" if r["fits"] else "not enough alone"
                lines.append(f"    {r['change']:<58}{human_bytes(r['peak_allocated_bytes']):>10}  {verdict}")
        return "\n".join(lines)


# -- one simulation, read


@dataclass
class _Replay:
    peak_allocated: int
    at_peak: dict[str, int]
    op: Op
    peak_reserved: int
    peaks: dict[str, tuple[int, str]]  # phase -> its peak, and the operation


def replay(blocks: Sequence[Block], expandable: bool, capacity: int | None = None) -> _Replay:
    """Play the life of all `blocks` through CUDA's allocator; sizes are those of the allocator's blocks.

    Raises:
        OutOfMemory: a GPU of `capacity` bytes would have said so.
    """
    events = [(b.seen, 0, b) for b in blocks] + [(b.died, 1, b) for b in blocks if b.died is not None]
    events.sort(key=lambda event: event[:2])
    allocator = CachingAllocator(capacity, expandable)
    pieces: dict[int, Any] = {}
    held: Counter = Counter()
    result = _Replay(0, {}, Op(0, "", "", ""), 0, {})
    for _, ends, block in events:
        if ends:
            piece = pieces.pop(id(block))
            held[block.tenant] -= piece.size
            allocator.release(piece)
            continue
        piece = pieces[id(block)] = allocator.allocate(block.nbytes)
        held[block.tenant] += piece.size
        phase = block.op.phase.partition(" (")[0]
        if allocator.allocated > result.peaks.get(phase, (0, ""))[0]:
            result.peaks[phase] = (allocator.allocated, block.op.name)
        if allocator.allocated > result.peak_allocated:
            result.peak_allocated, result.op = allocator.allocated, block.op
            result.at_peak = dict(held)
    result.peak_reserved = allocator.peak_reserved
    return result


def _fits(simulation: Simulation, played: _Replay, high: int, capacity: int) -> bool:
    """Say whether the recipe runs in `capacity` bytes.

    It may where reserved memory would grow beyond: before it gives up, the allocator hands its cache back.
    """
    if high <= capacity or played.peak_allocated > capacity:
        return high <= capacity
    try:
        replay(simulation.blocks, simulation.recipe.expandable_segments, capacity)
    except OutOfMemory:
        return False
    return True


def _gpus(gpu: str | None, budget: float | None) -> list[Gpu]:
    if gpu is not None and budget is not None:
        raise RecipeError("Give a GPU or a budget, not both.")
    if budget is not None:
        if not 0 < budget < math.inf:
            raise RecipeError(f"The budget is {budget:g} GiB; it must be more than 0.")
        return [Gpu(f"{budget:g} GiB", int(budget * GiB), 0, 0, 0)]
    return [find_gpu(gpu)] if gpu is not None else list(GPUS.values())


def _read(simulation: Simulation, gpus: Sequence[Gpu]) -> Plan:
    """Make a plan of a simulation."""
    recipe = simulation.recipe
    played = replay(simulation.blocks, recipe.expandable_segments)
    room = {gpu.name: gpu.total - CONTEXT for gpu in gpus}
    low = max(played.peak_allocated, int(played.peak_reserved * (1 - BELOW)))
    high = max(int(played.peak_reserved * (1 + ABOVE)), played.peak_reserved + 2 * CUBLAS_WORKSPACE)
    kept = "in one segment that grows" if recipe.expandable_segments else "in segments of 2, 20 and more MiB"
    fits = {name: _fits(simulation, played, high, capacity) for name, capacity in room.items()}
    because = [
        f"the allocator keeps what was freed, {kept}: {human_bytes(played.peak_reserved)} in a replay of its rules",
        "workspaces of cuBLAS: 8 MiB for each of two threads, 32 MiB on Hopper",
        "scratch of other libraries, and another PyTorch's order of allocations: -3 to +11 % in published figures",
    ]
    micro_batches = recipe.accumulate
    passes = 3 if recipe.checkpointing != "none" else 2
    each = passes * simulation.parameter_bytes // (recipe.ranks if recipe.shard == "zero3" else 1)
    once = 3 * simulation.trained_bytes // (1 if recipe.shard == "none" else recipe.ranks) + 2 * simulation.state_bytes
    traffic = micro_batches * each + once
    seconds = {gpu.name: roofline_seconds_of(recipe, simulation.flops, traffic, gpu) for gpu in gpus if gpu.bandwidth}
    return Plan(
        recipe=recipe,
        peak_allocated_bytes=played.peak_allocated,
        at_peak={tenant: played.at_peak.get(tenant, 0) for tenant in TENANTS},
        peak_at=str(played.op),
        reserved_bytes=(low, high),
        reserved_because=because,
        floor_bytes=_floor(simulation),
        fits=fits,
        roofline_seconds=seconds,
        flops=simulation.flops,
        recomputed_share=simulation.recomputed_flops / simulation.flops if simulation.flops else 0.0,
        piece_traffic_bytes=each,
        update_traffic_bytes=once,
        sent_bytes=simulation.sent,
        host_bytes=simulation.host_bytes,
        parameters=simulation.parameters,
        trained=simulation.trained,
        peaks=played.peaks,
    )


def roofline_seconds_of(recipe: Recipe, flops: float, traffic: float, gpu: Gpu) -> float:
    """Return the seconds below which `gpu` cannot do `flops` operations nor move `traffic` bytes of its memory.

    BF16 on a GPU that has none is emulated in FP32, and counts at that rate.
    """
    slow = recipe.precision == "fp32" or (recipe.precision.startswith("bf16") and not gpu.bf16)
    return max(flops / (gpu.flops32 if slow else gpu.flops16), traffic / gpu.bandwidth)


def _floor(simulation: Simulation) -> int:
    """Return what is needed before anything is computed, and cannot be shared out over the step."""
    recipe, state = simulation.recipe, simulation.state_bytes
    gradients = 0 if recipe.step_in_backward or recipe.shard in ("zero2", "zero3") else simulation.trained_bytes
    if fully_sharded(recipe):
        return (0 if recipe.offload == "all" else simulation.parameter_bytes // recipe.ranks) + state
    return simulation.parameter_bytes + gradients + state


# -- planning


def plan(
    recipe: Recipe,
    gpu: str | None = None,
    budget: float | None = None,
    tell: Callable[[str], None] = lambda stage: None,
) -> Plan:
    """Predict what `recipe` needs.

    Args:
        recipe: what to train, and how.
        gpu: a GPU of the catalog to ask about; without one, all of them are.
        budget: GiB of a GPU that is not in the catalog.
        tell: hears which stage begins.

    With a GPU or a budget that the recipe exceeds, the plan lists remedies.

    Raises:
        RecipeError: the recipe, the GPU or the budget makes no sense.
    """
    began = time.perf_counter()
    gpus = _gpus(gpu, budget)
    result = _read(simulate(recipe, tell), gpus)
    if (gpu is not None or budget is not None) and not all(result.fits.values()):
        tell("trying remedies")
        result.remedies = _try_remedies(result, gpus)
    result.seconds = time.perf_counter() - began
    return result


def plan_many(
    recipes: Sequence[Recipe], gpu: str | None = None, budget: float | None = None, progress: bool = False
) -> list[Plan]:
    """Predict what each of `recipes` needs; no remedies.

    Equal recipes are planned once. Many are shared out over worker processes, which import and warm up once.

    Raises:
        RecipeError: one of the recipes, the GPU or the budget makes no sense.
    """
    from tqdm.auto import tqdm

    gpus = _gpus(gpu, budget)
    distinct = list(dict.fromkeys(recipes))
    if len(distinct) < MANY:
        results = (_plan_one(recipe, gpus) for recipe in distinct)
    else:
        from joblib import Parallel, delayed

        results = Parallel(n_jobs=-1, return_as="generator")(delayed(_plan_one)(recipe, gpus) for recipe in distinct)
    plans = dict(zip(distinct, tqdm(results, total=len(distinct), desc="plans", disable=not progress), strict=True))
    return [plans[recipe] for recipe in recipes]


def _plan_one(recipe: Recipe, gpus: Sequence[Gpu]) -> Plan:
    simulation = simulate(recipe)
    result = _read(simulation, gpus)
    result.seconds = simulation.seconds
    return result


def _candidates(recipe: Recipe) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what could be changed, the least trouble first: (words, changed fields)."""
    if recipe.attention == "eager":
        yield "fused attention (--attention sdpa): same numbers", {"attention": "sdpa"}
    if recipe.optimizer in ("adamw", "adam") and recipe.optimizer_impl == "foreach":
        yield "fused optimizer (--optimizer-impl fused): same numbers", {"optimizer_impl": "fused"}
    if recipe.batch > 1:
        whole = recipe.batch * recipe.accumulate
        yield f"--batch 1 --accumulate {whole}: same gradient, but for BatchNorm", {"batch": 1, "accumulate": whole}
    if recipe.checkpointing != "every":
        yield "--checkpointing every: same gradient, more time", {"checkpointing": "every"}
    if recipe.accumulate == 1 and not recipe.keep_grads:
        yield "--step-in-backward: same numbers, no gradient clipping", {"step_in_backward": True}
    if recipe.precision == "fp32":
        yield "--precision bf16-amp: 16-bit activations", {"precision": "bf16-amp"}
    if recipe.optimizer in ("adamw", "adam") and not recipe.lora_rank:
        change = {"optimizer": "adamw-8bit", "optimizer_impl": "foreach"}
        yield "--optimizer adamw-8bit: 8-bit moments", change
    if recipe.offload == "none":
        yield "--offload optimizer: slower", {"offload": "optimizer"}
    if recipe.ranks > 1 and recipe.shard != "zero3":
        yield "--shard zero3: more communication", {"shard": "zero3", "keep_grads": False}
    if not recipe.lora_rank:
        yield "LoRA (--lora-rank 16): trains adapters only", {"lora_rank": 16}
    elif recipe.quantize == "none" and recipe.precision != "fp32":
        yield "--quantize nf4-dq: a 4-bit base", {"quantize": "nf4-dq"}
    if recipe.precision in ("fp32", "fp16-amp", "bf16-amp"):
        yield "--precision bf16: 16-bit weights too", {"precision": "bf16"}
    if recipe.seq > 128:
        yield f"--seq {recipe.seq // 2}: shorter sequences", {"seq": recipe.seq // 2}


def _try_remedies(base: Plan, gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """Return the changes that lower the peak: those that suffice alone first, in order of trouble."""
    found = []
    for words, change in _candidates(base.recipe):
        try:
            result = _plan_one(replace(base.recipe, **change), gpus)
        except RecipeError:
            continue  # this one does not go with the rest of the recipe, or with the model
        if result.peak_allocated_bytes < 0.995 * base.peak_allocated_bytes:
            found.append(
                {
                    "change": words,
                    "peak_allocated_bytes": result.peak_allocated_bytes,
                    "reserved_bytes": result.reserved_bytes,
                    "fits": all(result.fits.values()),
                    "recipe": asdict(result.recipe),
                }
            )
    return sorted(found, key=lambda remedy: not remedy["fits"])
