"""From a simulated step to an answer: how much, where, and does it fit."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.progress_line import progress_line
from ..core.units import GiB, MiB, human_bytes
from ..meter.categories import CATEGORIES
from .allocator import OutOfMemory
from .catalog.clusters import Cluster
from .catalog.gpus import GPUS, Gpu, find_gpu
from .catalog.this_machine import THIS, this_machine
from .config import RecipeError, TrainingConfig
from .forecast import Forecast, seconds_in_words
from .grades import DOES_NOT_FIT, FITS, TIGHT, grade
from .remedies import RemedySearch
from .replay import Replay, replay
from .reserved import ABOVE, BELOW, reserved_between

if TYPE_CHECKING:
    from .simulate.steps import Simulation
    from .simulate.strategy import Strategy

MANY = 6  # from this number of recipes on, worker processes earn the seconds they take to start


@dataclass
class Plan:
    """What a recipe will need. All figures are bytes on one GPU unless they say otherwise.

    Attributes:
        peak_allocated_bytes: what `torch.cuda.max_memory_allocated()` will say after two steps.
        at_peak: that peak by category.
        peak_at: the phase, operation and module in which it is reached.
        reserved_bytes: the two figures between which `torch.cuda.max_memory_reserved()` will lie.
        reserved_because: sentences on what separates reserved from allocated.
        floor_bytes: parameters, their gradients and the optimizer's state; no plain run of this recipe can need less.
        grades: whether it "fits" each GPU asked about, next to the CUDA context, is "tight" or "does not fit".
        room_bytes: of each of these GPUs, what is left for the allocator.
        roofline_seconds: a lower bound of a step on each GPU: FLOPs over peak FLOP/s, or traffic over bandwidth.
        forecasts: how long a step will take on each GPU; of several ranks on the cluster asked about; none with
            offloading, where the host works, too.
        remedies: what to change when it does not fit; each with its own predicted peak and seconds (`Remedy`).
        flops, recomputed_share: of one optimizer step, and the share that checkpointing computes twice.
        micro_batch_traffic_bytes, update_traffic_bytes: what a GPU must at least read and write in its memory, for each
            micro-batch (weights) and once an optimizer step (weights, gradients and state).
        peaks: the peak of each phase, and the operation that made it.
        sent_bytes: what one rank sends in one optimizer step.
        host_bytes: what offloading keeps in host memory, or paging moves there if the GPU is full.
        seconds: how long the planning took.
    """

    recipe: TrainingConfig
    peak_allocated_bytes: int
    at_peak: dict[str, int]
    peak_at: str
    reserved_bytes: tuple[int, int]
    reserved_because: list[str]
    floor_bytes: int
    grades: dict[str, str]
    roofline_seconds: dict[str, float]
    flops: int
    recomputed_share: float
    micro_batch_traffic_bytes: int
    update_traffic_bytes: int
    sent_bytes: int
    host_bytes: int
    parameters: int
    trained: int
    room_bytes: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, tuple[int, str]] = field(default_factory=dict)
    forecasts: dict[str, Forecast] = field(default_factory=dict)
    remedies: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def fits(self) -> dict[str, bool]:
        """Whether each GPU asked about may run it, with room to spare or without."""
        return {gpu: said != DOES_NOT_FIT for gpu, said in self.grades.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain lists, dictionaries and numbers."""
        return asdict(self) | {"fits": self.fits}

    def __str__(self) -> str:
        low, high = self.reserved_bytes
        width = max(16, *(len(name) + 2 for name in self.grades))
        lines = [
            self.recipe.title,
            *(f"  {name:<{width}}{said:<14}{self._speed(name, said)}".rstrip() for name, said in self.grades.items()),
            f"  {self.parameters / 1e9:.3f}B parameters, {self._trained()} of them trained",
            f"  peak allocated  {human_bytes(self.peak_allocated_bytes)}",
            f"    in {self.peak_at}",
        ]
        lines += [f"    {t:<23}{human_bytes(n):>12}" for t, n in self.at_peak.items() if n >= MiB // 10]
        lines.append(f"  reserved        {human_bytes(low)} to {human_bytes(high)}, because of")
        lines += [f"    - {reason}" for reason in self.reserved_because]
        if len(self.room_bytes) == 1:
            lines.append(f"  {self._spare(*next(iter(self.room_bytes.items())))}")
            lines += self._where_tight() if TIGHT in self.grades.values() else []
        lines.append(f"  {self.flops / 1e12:,.2f} TFLOP per step, {self.recomputed_share:.0%} of them recomputed")
        if self.sent_bytes:
            lines.append(f"  {human_bytes(self.sent_bytes)} sent by each rank per step")
        if self.host_bytes:
            where = "of paged state, on the host where the GPU is full" if self.recipe.paged else "in the host's memory"
            each = f", for each of {self.recipe.ranks} ranks" if self.recipe.ranks > 1 else ""
            lines.append(f"  {human_bytes(self.host_bytes)} {where}{each}")
        return "\n".join([*lines, *self._remedy_lines()])

    def _trained(self) -> str:
        return "all" if self.trained == self.parameters else f"{self.trained / 1e6:,.1f}M"

    def _spare(self, gpu: str, room: int) -> str:
        """Say how much of the GPU is left, or how much too small it is."""
        spare = room - self.reserved_bytes[1]
        if room <= 0:
            return f"{gpu} has no memory left beside the CUDA context"
        if self.peak_allocated_bytes > room:
            left = f"{human_bytes(self.peak_allocated_bytes - room)} short"
            if self.floor_bytes > room:
                left += f"; {human_bytes(self.floor_bytes)} stay allocated through the whole step at any micro-batch"
        elif self.grades[gpu] == DOES_NOT_FIT:
            left = "enough for the tensors, but a replay in it runs out of memory, because what is free is in pieces"
        else:
            left = f"{human_bytes(spare)} to spare" if spare >= 0 else f"as much as {human_bytes(-spare)} short"
        return f"{gpu} has {human_bytes(room)} for the allocator: {left}"

    def _where_tight(self) -> list[str]:
        """Return a line with the options that may help; no remedies are looked for, because the recipe may run."""
        options = [] if self.recipe.expandable_segments else ["--expandable-segments may reserve less"]
        if self.recipe.micro_batch_size > 1:
            options.append("--largest-batch finds the largest micro-batch that fits")
        return [f"  tight: {'; '.join(options)}"] if options else []

    def _speed(self, gpu: str, grade: str) -> str:
        """Say how long a step takes; where there is no forecast, how long at least; "" where it does not fit."""
        if grade == DOES_NOT_FIT:
            return ""
        if gpu in self.forecasts:
            return str(self.forecasts[gpu])
        bound = self.roofline_seconds.get(gpu)
        if bound is None:
            return "no forecast of seconds without a data sheet"
        return f"a step takes at least {bound * 1e3:,.3g} ms (a lower bound, without messages or the host's work)"

    def _remedy_lines(self) -> list[str]:
        if not self.remedies:
            return []
        now = next(iter(self.forecasts.values()), None)
        unit = now.unit.removesuffix("s") if now else "token"
        as_it_is = f"; unchanged, a step would take {seconds_in_words(now.seconds)}" if now else ""
        lines = [f"  what to change, easiest first, with the memory allocated after the change{as_it_is}:"]
        width = max(58, *(len(r["change"]) + 1 for r in self.remedies))
        for r in self.remedies:
            verdict = TIGHT if r["tight"] else FITS if r["fits"] else "not enough alone"
            peak = human_bytes(r["peak_allocated_bytes"])
            lines.append(f"    {r['change']:<{width}}{peak:>10}  {verdict:<16}  {_cost(r, unit)}".rstrip())
        return lines


def _cost(remedy: Mapping[str, Any], unit: str) -> str:
    """Say what a remedy costs: seconds of a step, and how much longer a `unit` (token, image) takes; or FLOPs."""
    slower = f"{remedy['slower']:+.0%}"
    if remedy["seconds"] is None:
        return f"{slower} FLOPs" if abs(remedy["slower"]) >= 0.005 else ""
    change = "the same" if abs(remedy["slower"]) < 0.005 else slower
    return f"{seconds_in_words(remedy['seconds'])} per step, {change} time per {unit}"


def plan(
    recipe: TrainingConfig,
    gpu: str | None = None,
    budget: float | None = None,
    tell: Callable[[str], None] = progress_line,
    cluster: Cluster | None = None,
    early: Callable[[Plan], None] = lambda first: None,
) -> Plan:
    """Predict what `recipe` needs.

    Args:
        recipe: what to train, and how: in plain PyTorch, by data-parallel ranks or on one GPU. `plan_layout` plans
            other engines, and ranks that split a model.
        gpu: a GPU of the catalog to ask about, the path of a GPU's TOML file, or "this" machine, whose roofline was
            measured; without one, the common GPUs of the catalog.
        budget: GiB of a GPU that is not in the catalog.
        tell: called with the name of each stage as it begins, and with "" at the end.
        cluster: whose GPU to ask about; its links carry the messages of several ranks.
        early: called with the plan before remedies are looked for.

    With a GPU or a budget that the recipe exceeds, the plan lists remedies.

    Raises:
        RecipeError: the recipe, the GPU or the budget makes no sense.
    """
    began = time.perf_counter()
    gpus = [cluster.gpu] if cluster else gpus_of(gpu, budget)
    try:
        simulation = _simulate(recipe, tell)
        result = _plan_of(simulation, gpus)
        if cluster and recipe.ranks > 1:
            result.forecasts = _forecast_over_ranks(simulation, cluster, tell)
        early(result)
        if (cluster or gpu is not None or budget is not None) and not all(result.fits.values()):
            tell("trying remedies")
            search = RemedySearch(result, gpus, lambda changed: plan_on(changed, gpus), simulation.batch_norm)
            result.remedies = [remedy.to_json() for remedy in search.remedies()]
    finally:
        tell("")
    result.seconds = time.perf_counter() - began
    return result


def plan_many(
    recipes: Sequence[TrainingConfig], gpu: str | None = None, budget: float | None = None, progress: bool = False
) -> list[Plan]:
    """Predict what each of `recipes` needs; no remedies.

    Equal recipes are planned once. Many are spread over worker processes, which import and warm up once.

    Raises:
        RecipeError: one of the recipes, the GPU or the budget makes no sense.
    """
    gpus = gpus_of(gpu, budget)
    distinct = list(dict.fromkeys(recipes))
    if len(distinct) < MANY:
        results = (plan_on(recipe, gpus) for recipe in distinct)
    else:
        from joblib import Parallel, delayed

        results = Parallel(n_jobs=-1, return_as="generator")(delayed(plan_on)(recipe, gpus) for recipe in distinct)
    plans: dict[TrainingConfig, Plan] = {}
    for recipe in distinct:
        if progress:
            progress_line(f"plans: {len(plans)} of {len(distinct)}")
        plans[recipe] = next(results)
    progress_line("")
    return [plans[recipe] for recipe in recipes]


def plan_on(recipe: TrainingConfig, gpus: Sequence[Gpu]) -> Plan:
    """Predict what `recipe` needs on each of `gpus`; no remedies.

    Raises:
        RecipeError: the recipe makes no sense.
    """
    simulation = _simulate(recipe)
    result = _plan_of(simulation, gpus)
    result.seconds = simulation.seconds
    return result


def plan_over(recipe: TrainingConfig, cluster: Cluster) -> Plan:
    """Predict what `recipe` needs on a cluster, with the messages of its ranks; no remedies.

    Raises:
        RecipeError: the recipe makes no sense.
    """
    simulation = _simulate(recipe)
    result = _plan_of(simulation, [cluster.gpu])
    if recipe.ranks > 1:
        result.forecasts = _forecast_over_ranks(simulation, cluster, lambda stage: None)
    return result


def _simulate(recipe: TrainingConfig, tell: Callable[[str], None] = lambda stage: None) -> "Simulation":
    """Run the recipe's steps. Not before this is PyTorch imported: it takes seconds, which `--help` can do without."""
    tell("importing PyTorch")
    from .simulate.steps import simulate

    return simulate(recipe, tell)


def _forecast_over_ranks(
    simulation: "Simulation", cluster: Cluster, tell: Callable[[str], None]
) -> dict[str, Forecast]:
    """Forecast the seconds of several ranks by the layout of a decoder that trains alike; without one, as of one."""
    from .catalog.archs import arch_of
    from .costs import forecast_over_ranks
    from .layout.layout import layout_of
    from .layout.layout_plan import plan_layout

    recipe = simulation.recipe
    try:
        timed = plan_layout(layout_of(recipe, arch_of(recipe.model)), cluster, tell=tell)
    except RecipeError:
        return forecast_over_ranks(simulation, cluster)
    rate = timed.tokens_per_second
    return {
        cluster.gpu.name: Forecast(timed.seconds, timed.low, timed.high, rate, "tokens", timed.mfu, dict(timed.parts))
    }


def gpus_of(gpu: str | None, budget: float | None) -> list[Gpu]:
    """Return the GPU of this name, or of this many GiB; without either, the common GPUs of the catalog.

    Raises:
        RecipeError: there is no such GPU, or the budget makes no sense.
    """
    if gpu is not None and budget is not None:
        raise RecipeError("Give a GPU or a budget, not both.")
    if gpu == THIS:
        return [this_machine()]
    if budget is not None:
        if not 0 < budget < math.inf:
            raise RecipeError(f"The budget is {budget:g} GiB; it must be more than 0.")
        return [Gpu(f"{budget:g} GiB", int(budget * GiB))]
    return [find_gpu(gpu)] if gpu is not None else [each for each in GPUS.values() if each.common]


def _plan_of(simulation: "Simulation", gpus: Sequence[Gpu]) -> Plan:
    """Return the plan of a simulation."""
    from .costs import forecasts
    from .simulate.strategies import strategy_of

    recipe = simulation.recipe
    strategy = strategy_of(recipe)
    played = replay(simulation.blocks, recipe.expandable_segments)
    by_micro_batch, by_update = _traffic(simulation, strategy)
    traffic = recipe.gradient_accumulation_steps * by_micro_batch + by_update
    return Plan(
        recipe=recipe,
        peak_allocated_bytes=played.peak_allocated,
        at_peak={category: played.at_peak.get(category, 0) for category in CATEGORIES},
        peak_at=str(played.op),
        reserved_bytes=tuple(reserved_between(played.peak_allocated, played.peak_reserved)),
        reserved_because=_reasons(recipe, played.peak_reserved),
        floor_bytes=simulation.floor_bytes,
        grades={gpu.name: _grade(simulation, played, gpu) for gpu in gpus},
        room_bytes={gpu.name: gpu.room for gpu in gpus},
        roofline_seconds={
            gpu.name: gpu.roofline_seconds(simulation.flops, traffic, _precision(simulation, gpu))
            for gpu in gpus
            if gpu.bandwidth
        },
        flops=simulation.flops,
        recomputed_share=simulation.recomputed_flops / simulation.flops if simulation.flops else 0.0,
        micro_batch_traffic_bytes=by_micro_batch,
        update_traffic_bytes=by_update,
        sent_bytes=simulation.sent,
        host_bytes=simulation.host_bytes,
        parameters=simulation.parameters,
        trained=simulation.trained,
        peaks=played.peaks,
        forecasts=forecasts(simulation, played.peak_allocated, gpus),
    )


def _grade(simulation: "Simulation", played: Replay, gpu: Gpu) -> str:
    """Return how the recipe fits `gpu`; what seems tight is replayed in the GPU's room, which fragments may fill."""
    reserved = reserved_between(played.peak_allocated, played.peak_reserved, gpu.cublas_workspace).high
    said = grade(played.peak_allocated, reserved, gpu.room)
    if said in (FITS, DOES_NOT_FIT):
        return said
    try:
        replay(simulation.blocks, simulation.recipe.expandable_segments, gpu.room)
    except OutOfMemory:
        return DOES_NOT_FIT
    return said


def _reasons(recipe: TrainingConfig, peak_reserved: int) -> list[str]:
    """Return what separates reserved from allocated memory, a sentence each."""
    kept = "in one segment that grows" if recipe.expandable_segments else "in segments of 2 MiB, 20 MiB or more"
    between = f"{-BELOW:.0%} to {ABOVE:+.0%}"
    return [
        f"the allocator's cache of freed memory, {kept}: {human_bytes(peak_reserved)} in a replay of its rules",
        "cuBLAS workspaces: 8 MiB for each of two threads, 32 MiB on Hopper",
        f"scratch memory of other libraries, and other PyTorch versions: {between} in published figures",
    ]


def _traffic(simulation: "Simulation", strategy: "Strategy") -> tuple[int, int]:
    """Return the bytes that a GPU must read and write at least, for each micro-batch and once an update."""
    recipe = simulation.recipe
    passes = 3 if recipe.checkpointing != "none" else 2
    by_micro_batch = passes * simulation.parameter_bytes // (recipe.ranks if strategy.shards_parameters else 1)
    gradients = 3 * simulation.trained_bytes // (recipe.ranks if strategy.shards_state else 1)
    return by_micro_batch, gradients + 2 * simulation.state_bytes


def _precision(simulation: "Simulation", gpu: Gpu) -> str:
    """Return the precision of a recipe; "tf32" where some of its FP32 numbers are multiplied so."""
    from .costs import in_tf32

    quick = in_tf32(simulation.recipe, gpu)
    some = simulation.recipe.precision == "fp32" and any(step.work.kind in quick for step in simulation.works)
    return "tf32" if some else simulation.recipe.precision
